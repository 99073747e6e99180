"""Operators' changes, from Python."""

from __future__ import annotations

import inspect

import pytest
from scripted_vmr import ScriptedVmr

import loomlog
from loomlog.client.operator import Operator
from loomlog.errors import InvalidArgument, Unavailable
from loomlog.wire import loomlog_pb2 as pb


def test_the_blocking_client_has_the_same_names_and_arguments() -> None:
    names = [name for name in vars(Operator) if not name.startswith("_")]
    assert "drain_node" in names
    for name in names:
        blocking = inspect.signature(getattr(loomlog.BlockingCluster, name))
        assert blocking == inspect.signature(getattr(loomlog.Cluster, name)), name


def test_a_change_says_what_was_done_and_what_happens_next() -> None:
    with ScriptedVmr() as vmr, loomlog.connect_sync(vmr.address) as cluster:
        vmr.answer.log_stream_id = 8
        assert cluster.add_stream("events") == loomlog.Change("it is done", "it goes on", 8)
        vmr.answer.log_stream_id = 0
        assert cluster.seal_stream(7).stream is None
        assert cluster.unseal_stream(7).scrubs == ()
        cluster.remove_stream(7)
        cluster.move_stream(7, 1)
        cluster.unregister_replica(7, 1)
        cluster.add_replica(7)
        cluster.scrub_stream(7)
        cluster.switch_log("events", streams=2)
        cluster.drain_node(1)
        cluster.undrain_node(1)
        cluster.remove_node(1)
        cluster.cleanup_node(1)
        cluster.replace_node(1)
        cluster.replace_volume(1, "/disks/b/")
        assert vmr.changes[-1].volume == "/disks/b"
        cluster.add_metadata(4, "127.0.0.1:7404")
        cluster.remove_metadata(4)
        assert len(vmr.changes) == 17


def test_numbers_are_checked_before_anything_is_asked() -> None:
    with ScriptedVmr() as vmr, loomlog.connect_sync(vmr.address) as cluster:
        for wrong in (0, -1, 1 << 32, "7", None):
            with pytest.raises(InvalidArgument, match="a stream is named by its number"):
                cluster.seal_stream(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="a node is named by its number"):
            cluster.move_stream(7, 1, 0)
        with pytest.raises(InvalidArgument, match="a metadata repository is named by its number"):
            cluster.remove_metadata(0)
        assert vmr.changes == []


def test_a_repository_that_is_away_for_a_moment_is_asked_again() -> None:
    with ScriptedVmr() as vmr, loomlog.connect_sync(vmr.address) as cluster:
        vmr.error = Unavailable("the repository is about to restart")
        vmr.then(lambda: None)
        vmr.then(lambda: setattr(vmr, "error", None))
        cluster.drain_node(1)
        drains = [change for change in vmr.changes if isinstance(change, pb.ChangeNode)]
        assert len(drains) == 3
