"""Rebuild a store from the readable parts of a damaged RocksDB.

Undamaged writes in its logs, and rows that can be read, are kept. It is unknown what else there
was: the result is not an older state of the store, but one that it never had. So the protocol makes
its rows consistent (`put_in_order`), and relies only on facts that hold whatever is missing.

Without a readable MANIFEST, RocksDB determines by itself which column families its tables belong
to, but loses the writes of families that have no table yet. So all undamaged writes are applied
once more; the caller derives the names of the column families from them.

The new store is built as a draft, `<path>.salvaging`, with hard links to tables and batches, which
are never changed. So it takes hardly any space, unless rows in tables cannot be read: then all
others are copied.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from rocksdict import Options, Rdict, WriteBatch

from loomlog.errors import Corrupt
from loomlog.storage import rocks, synced_mark
from loomlog.storage.files import DamagedRowsError, Files, closed_on_failure
from loomlog.storage.identity import OWNER_FILE
from loomlog.storage.set_aside import MARK, replace_store, salvaged_path
from loomlog.storage.write_ahead_log import Change, changes_in, whole_writes, write_log

_LINKED: Final = (".sst", ".blob")
_BATCHES: Final = "batches"  # files of our own (batch_files.py)
_NOT_COPIED: Final = frozenset((synced_mark.MARK, MARK))
_NOT_COPIED_PREFIXES: Final = ("LOCK", "LOG")
_KEY_BYTES: Final = 40  # longer than any key


class Database(NamedTuple):
    """A database with its column families."""

    main: Rdict
    families: dict[str, Rdict]

    def close(self) -> None:
        for table in (*self.families.values(), self.main):
            with suppress(Exception):  # what it fails to flush is not used
                table.close()


MakeOptions: TypeAlias = Callable[[], Options]
PutInOrder: TypeAlias = Callable[[Database], None]  # raises Corrupt if rows cannot be read
Writes: TypeAlias = Iterable[Sequence[Change]]
NameFamilies: TypeAlias = Callable[[Writes], Mapping[int, str]]  # all but the default one


def _no_families(writes: Writes) -> dict[int, str]:
    return {}


def salvage(
    files: Files,
    path: str,
    options: MakeOptions,
    put_in_order: PutInOrder,
    name_families: NameFamilies = _no_families,
) -> str:
    """Replace a damaged store by its readable parts. Return the new path of the damaged one.
    Blocking."""
    draft = f"{path}.salvaging"
    for left_over in (draft, salvaged_path(path)):  # by an attempt that was interrupted
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        _fill_draft(path, draft, options, put_in_order, name_families)
    except BaseException:
        for begun in (draft, f"{draft}.new"):  # the disk may be full
            shutil.rmtree(begun, ignore_errors=True)
        raise
    return replace_store(files, path, draft)


def _fill_draft(
    path: str,
    draft: str,
    options: MakeOptions,
    put_in_order: PutInOrder,
    name_families: NameFamilies,
) -> None:
    _make_draft(path, draft)
    if not _changed(draft, options, put_in_order):
        _copy_rows(path, draft, options, name_families)
        if not _changed(draft, options, put_in_order):
            raise Corrupt("its rows make no sense: restore the volume")
    open(os.path.join(draft, MARK), "wb").close()
    _sync(draft)


# ---- the draft


def _make_draft(path: str, draft: str) -> None:
    for folder, _, names in os.walk(path):
        target = os.path.join(draft, os.path.relpath(folder, path))
        os.makedirs(target, exist_ok=True)
        is_linked = _BATCHES in os.path.relpath(folder, path).split(os.sep)
        for name in names:
            source, copy = os.path.join(folder, name), os.path.join(target, name)
            if name.startswith(_NOT_COPIED_PREFIXES) or name in _NOT_COPIED:
                continue
            if name.endswith(".log"):
                with open(source, "rb") as damaged, open(copy, "wb") as mended:
                    write_log(mended, whole_writes(damaged))
            elif is_linked or name.endswith(_LINKED):
                _link(source, copy)
            else:
                shutil.copyfile(source, copy)


def _link(source: str, copy: str) -> None:
    try:
        os.link(source, copy)
    except OSError:  # not every file system has links
        shutil.copyfile(source, copy)


def _sync(path: str) -> None:
    for folder, _, names in os.walk(path, topdown=False):
        for name in (*(os.path.join(folder, name) for name in names), folder):
            descriptor = os.open(name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _open(path: str, options: MakeOptions) -> Database:
    if not os.path.exists(os.path.join(path, "CURRENT")):
        raise Corrupt("CURRENT is missing: RocksDB would make a new database")
    names = rocks.families(path, options())
    main = rocks.open_database(path, options, names)
    return Database(main, {name: main.get_column_family(name) for name in names})


def _changed(path: str, options: MakeOptions, change: PutInOrder) -> bool:
    """Change the rows of a database; return False if it is damaged."""
    try:
        database = _open(path, options)
        with closed_on_failure(database):
            change(database)
            for table in (database.main, *database.families.values()):
                table.flush(True)
    except Corrupt:
        return False
    database.close()
    return True


# ---- unreadable rows in tables


def _copy_rows(path: str, draft: str, options: MakeOptions, name_families: NameFamilies) -> None:
    """Replace the draft by a new database with all readable rows.

    A table without a readable index hides the rows of all others. RocksDB then has to drop that
    table (`repair`), and drops values in blobs, too."""

    def lenient() -> Options:
        made = options()
        made.set_paranoid_checks(False)
        return made

    new = f"{draft}.new"
    shutil.rmtree(new, ignore_errors=True)
    target = rocks.open_database(new, options)
    with closed_on_failure(target):
        if not _changed(draft, lenient, lambda source: _add_rows(source, target, options)):
            Rdict.repair(draft, lenient())
            source = _open(draft, lenient)
            with closed_on_failure(source), suppress(DamagedRowsError):
                _add_rows(source, target, options)
            source.close()
            _repeat_writes(path, target, options, name_families)
    target.close()
    for name in (_BATCHES, OWNER_FILE):
        if os.path.exists(os.path.join(draft, name)):
            os.rename(os.path.join(draft, name), os.path.join(new, name))
    shutil.rmtree(draft)
    os.rename(new, draft)


def _add_rows(source: Database, target: Rdict, options: MakeOptions) -> None:
    """Add the rows that the target lacks. Raise DamagedRowsError if a table hides others."""
    damage: DamagedRowsError | None = None
    for name, table in {"default": source.main, **source.families}.items():
        copy = target if name == "default" else _family(target, name, options)
        try:
            for key, value in readable_rows(table):
                if copy.get(key) is None:
                    copy.put(key, value)
        except DamagedRowsError as error:
            damage = error.with_traceback(None)
        copy.flush(True)
        if copy is not target:
            copy.close()
    if damage is not None:
        raise damage


def _family(target: Rdict, name: str, options: MakeOptions) -> Rdict:
    with suppress(Exception):  # it exists
        target.create_column_family(name, options())
    return target.get_column_family(name)


def _repeat_writes(
    path: str, target: Rdict, options: MakeOptions, name_families: NameFamilies
) -> None:
    """Apply all undamaged writes of the logs again, in order. Rows that later undamaged writes
    changed end up the same as before."""
    names = name_families(_logged(path))
    for name in sorted(set(names.values())):
        _family(target, name, options).close()
    families = {number: target.get_column_family_handle(name) for number, name in names.items()}
    for changes in _logged(path):
        batch = WriteBatch(raw_mode=True)
        for family, key, value, end in changes:
            place = (families[family],) if family in families else ()
            if family and not place:
                continue
            if value is not None:
                batch.put(key, value, *place)
            elif end is not None:
                batch.delete_range(key, end, *place)
            else:
                batch.delete(key, *place)
        target.write(batch)


def _logged(path: str) -> Iterator[list[Change]]:
    """Yield the changes of each undamaged write in the logs of a database, in order."""
    names = [name for name in os.listdir(path) if name.endswith(".log")]
    for name in sorted(names, key=lambda name: (len(name), name)):  # they are numbered
        with open(os.path.join(path, name), "rb") as file:
            for write in whole_writes(file):
                with suppress(Corrupt):
                    yield changes_in(write)


def readable_rows(table: Rdict) -> Iterator[tuple[bytes, bytes]]:
    """Yield the readable rows, in order. Raise DamagedRowsError after the last one if unreadable
    rows follow it."""
    start = b""
    while True:
        cursor = rocks.Cursor(table)
        try:
            key = cursor.seek(start)
            while key is not None:
                yield key, cursor.value
                start = key + b"\0"
                key = cursor.next()
            return
        except DamagedRowsError:
            start = _after_damage(table, start)


def _after_damage(table: Rdict, start: bytes) -> bytes:
    """Return a key after `start` from which rows can be read, found by steps of doubling size and
    a binary search: rows are damaged together, by the block."""
    damaged = int.from_bytes(start.ljust(_KEY_BYTES, b"\0"), "big")
    step, last = 1, (1 << 8 * _KEY_BYTES) - 1
    while not _can_be_read(table, readable := min(damaged + step, last)):
        if readable == last:
            raise DamagedRowsError("the index of a table is damaged")
        damaged, step = readable, step * 2
    while readable - damaged > 1:
        middle = (damaged + readable) // 2
        if _can_be_read(table, middle):
            readable = middle
        else:
            damaged = middle
    return readable.to_bytes(_KEY_BYTES, "big")


def _can_be_read(table: Rdict, key: int) -> bool:
    try:
        rocks.Cursor(table).seek(key.to_bytes(_KEY_BYTES, "big"))
    except DamagedRowsError:
        return False
    return True
