"""The directory of an archive, on a disk or in an object store, through pyarrow.fs.

Invariant: a file under its final name is complete. On a local disk it has also been synced, since
the log is trimmed after that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import fs

from loomlog.errors import DataLoss, InvalidArgument, LoomError, Unavailable

T = TypeVar("T")

_PARTIAL: Final = ".partial"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]|^\.+")


def uri_of(path_or_uri: str) -> str:
    """Return an absolute URI; raise InvalidArgument if it cannot be one."""
    if not path_or_uri.strip():
        raise InvalidArgument("the name of a directory is missing: give a path or a URI")
    is_uri = "://" in path_or_uri
    uri = path_or_uri if is_uri else Path(path_or_uri).expanduser().absolute().as_uri()
    Location(uri)
    return uri.rstrip("/")


def safe_name(name: str) -> str:
    """Replace characters that are unsafe in paths or URIs."""
    return _UNSAFE.sub("_", name)


class Location:
    """One directory, whose files are addressed by name."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            self._files, self._path = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ValueError) as problem:
            raise InvalidArgument(
                f"archive location {uri!r}: {_one_line(problem)}; give a path or a URI, "
                "e.g. file:///archive or s3://bucket/archive"
            ) from None

    def __repr__(self) -> str:
        return f"<Location {self.uri}>"

    def inside(self, name: str) -> Location:
        """Return a subdirectory; characters that are unsafe in paths or URIs are replaced."""
        return Location(f"{self.uri}/{safe_name(name)}")

    def describe(self, name: str) -> str:
        """Return the full name of a file, for messages."""
        return f"{self.uri}/{name}"

    def create_directory(self) -> None:
        self._try("cannot be made", lambda: self._files.create_dir(self._path, recursive=True))

    def names(self) -> list[str]:
        """Return the names of all files, including incomplete ones."""
        selector = fs.FileSelector(self._path, allow_not_found=True)
        infos = self._try("cannot be listed", lambda: self._files.get_file_info(selector))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.File)

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        try:
            self._files.delete_file(self._of(name))
        except FileNotFoundError:
            pass

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """Yield a new file to write to; it appears under its name once it is complete."""
        is_local = isinstance(self._files, fs.LocalFileSystem)
        path = self._of(name + _PARTIAL if is_local else name)
        stream = self._try("cannot be written", lambda: self._files.open_output_stream(path))
        with stream as sink:
            yield sink
        if is_local:
            make_durable(path)
            self._files.move(path, self._of(name))
            make_durable(self._path)

    def write(self, name: str, data: bytes) -> None:
        with self.create(name) as sink:
            sink.write(data)

    def read(self, name: str) -> bytes:
        with self.open(name) as source:
            return bytes(source.read())

    def open(self, name: str) -> Any:
        """Open a file for random access; raise DataLoss if it is missing."""
        try:
            return self._files.open_input_file(self._of(name))
        except FileNotFoundError:
            raise DataLoss(
                f"the archive file {self.describe(name)} is missing: bring it back, or make its "
                "location reachable from here"
            ) from None
        except (pa.ArrowException, OSError) as problem:
            raise self._unreachable("cannot be read", problem) from None

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _try(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except (pa.ArrowException, OSError) as problem:
            raise self._unreachable(what, problem) from None

    def _unreachable(self, what: str, problem: BaseException) -> LoomError:
        return Unavailable(f"the archive at {self.uri} {what}: {_one_line(problem)}")


def make_durable(path: str | Path) -> None:
    """Sync a file, or the entries of a directory, so that they survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())
