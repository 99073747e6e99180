"""A log with changes that are not committed yet looks as it does once they are."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from logsdb_rig import record
from memory_tables import copied, last_of

from loomlog.core.copyset.messages import EpochEnd
from loomlog.core.copyset.record import LSN_MAX, make
from loomlog.core.copyset.storage import Change, Erase, Gone, LogStanding, Put, Rewrite
from loomlog.storage.logsdb.store import UncommittedLog
from loomlog.storage.logsdb.table import MemoryLog


def change_of(log: MemoryLog, random: Random) -> Change:
    """Return any change that may come next: copies never overlap."""
    offset = random.randint(1, 60)
    copies = log.heads(0, LSN_MAX, 100)
    match random.randint(0, 11):
        case 0 | 1 if copies:
            copy = random.choice(copies)
            return Rewrite(copy._replace(wave=copy.wave + 1, copyset=(random.randint(1, 9),)))
        case 2:
            return Erase(make(1, offset), make(1, offset + random.choice([0, 0, 5])))
        case 3 if random.random() < 0.3:
            return log.standing._replace(trimmed=max(log.standing.trimmed, make(1, offset // 3)))
        case 4:
            return LogStanding(random.randint(0, 9), trimmed=log.standing.trimmed)
        case 5:
            return EpochEnd(random.randint(1, 3), random.randint(0, 9), 9, 1, 1)
        case 6 if random.random() < 0.05:
            return Gone()
        case 7 if copies:  # in the place of another
            copy = random.choice(copies)
            return Put(copy._replace(wave=copy.wave + 1, batch=b"%d" % offset))
    new = record(offset, random.randint(1, 4), batch=b"%d" % random.randint(1, 99))
    is_free = not log.heads(new.first, new.last, 1) and new.last > log.standing.trimmed
    return Put(new) if is_free else Erase(new.first, new.first)


def assert_alike(view: UncommittedLog, log: MemoryLog, random: Random) -> None:
    assert view.standing == log.standing
    for first, last, most in [(0, LSN_MAX, 99), (make(1, random.randint(1, 60)), LSN_MAX, 3)]:
        heads = view.heads(first, last, most)
        assert heads == log.heads(first, last, most)
        assert [view.load(head) for head in heads] == [log.load(head) for head in heads]
    last = make(1, random.randint(1, 70))
    assert view.last_head(last) == log.last_head(last)
    assert [view.end_of(epoch) for epoch in (1, 2, 3)] == [log.end_of(e) for e in (1, 2, 3)]


@pytest.mark.parametrize("seed", range(200))
def test_it_looks_as_if_all_was_committed(seed: int) -> None:
    random = Random(seed)
    log = MemoryLog()
    for _ in range(4):
        stored = copied(log)
        view = UncommittedLog(partial(copied, stored), stored.standing, last_of(stored))
        pace = random.choice([1, 1, 4])
        for _ in range(random.randint(1, 25)):
            change = change_of(log, random)
            view.apply(change)
            log.apply(change)
            if not random.randrange(pace):
                assert_alike(view, log, random)
        assert_alike(view, log, random)


def test_what_comes_behind_all_others_is_not_looked_for() -> None:
    def look() -> MemoryLog:
        raise AssertionError

    view = UncommittedLog(look, LogStanding(), make(1, 3))
    for offset in range(4, 9):
        assert view.heads(make(1, offset), make(1, offset), 1) == []
        view.apply(Put(record(offset)))
    with pytest.raises(AssertionError):
        view.heads(make(1, 8), make(1, 8), 1)
