"""Nodes that know nothing newer than metadata that went back in time may be older copies, too."""

from __future__ import annotations

from typing import cast

import pytest

from loomlog.metadata.catalog.records import HISTORY, HistoryRecord, encode
from loomlog.metadata.offline.collector import Caller
from loomlog.metadata.offline.outdated import Past
from loomlog.metadata.store.contract import StoredItem
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

RUNS = ((1, "a", 10), (2, "b", 0))  # the second one is the newest
NOTED_AT = 40  # the revision at which the leader noted that the metadata went back


def suspects(revision: int, rolled_back: str) -> set[int]:
    """Return the nodes that may be older copies, if all three know this revision of the run."""
    record = HistoryRecord(runs=RUNS, rolled_back=rolled_back)
    past = Past({HISTORY: StoredItem(encode(record), NOTED_AT)})
    known = pb.NoteRun(number=2, id="b", revision=revision)
    callers = {
        node: Caller(node, cast(Connection, None), pb.Register(known_run=known), 0)
        for node in (1, 2, 3)
    }
    return set(past.outdated(callers, ()))


@pytest.mark.parametrize("revision", [NOTED_AT, NOTED_AT + 19])
def test_nodes_that_knew_more_before_the_store_went_back_under_the_leader_are_newer(
    revision: int,
) -> None:
    assert not suspects(revision, "because its store lacks changes that it had confirmed")


def test_nodes_that_know_no_more_may_be_older_copies() -> None:
    assert suspects(NOTED_AT - 1, "node 4 knows change 59 of the metadata") == {1, 2, 3}


def test_nodes_agree_with_metadata_that_did_not_go_back() -> None:
    assert not suspects(NOTED_AT + 19, "")
