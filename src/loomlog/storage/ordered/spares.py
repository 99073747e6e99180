"""Files that are ready to become data files: created in advance, or trimmed ones to be reused.

Overwriting a file that was written before halves the cost of its fdatasync. Its old contents are
stale, and readers of data files must be able to tell them from data. Used only off the loop, by the
steps of one replica, which run one after the other.
"""

from __future__ import annotations

from loomlog.storage.files import File, Files


class Spares:
    """The spare files of one replica, all of one size."""

    def __init__(
        self, files: Files, path: str, size: int, count_max: int, *, durable: bool = True
    ) -> None:
        """Adopt the spare files that an earlier process left. Blocking."""
        self._files = files
        self._path = path
        self._size = size
        self._count_max = count_max
        self._durable = durable
        self._ready: list[tuple[str, File]] = []
        self._made = 0
        files.make_directory(path)
        for name in files.list(path):
            self._adopt(f"{path}/{name}")

    def prepare(self) -> None:
        """Prepare at least one spare file."""
        if not self._ready:
            self._ready.append(self._make())

    def take(self, target: str) -> File:
        """Move a file of full size to `target`, and return it."""
        self.prepare()
        path, file = self._ready.pop()  # the newest is most likely one that was written before
        self._files.rename(path, target)
        self._settle(target)
        return file

    def give(self, path: str, file: File) -> None:
        """Keep the file at `path` for reuse, or remove it."""
        if len(self._ready) < self._count_max and file.size() == self._size:
            spare = self._name()
            self._files.rename(path, spare)
            self._ready.append((spare, file))
        else:
            self._files.remove(path)
        # Sync before it is reused, so that its old name cannot reappear with new contents.
        self._settle(path)

    def close(self) -> None:
        for _, file in self._ready:
            file.close()
        self._ready.clear()

    def _make(self) -> tuple[str, File]:
        path = self._name()
        file = self._files.open(path, create=True)
        try:
            file.allocate(self._size)
            file.sync()  # its size must survive once it is a data file
        except OSError:
            self._files.remove(path)
            raise
        return path, file

    def _settle(self, path: str) -> None:
        """Make a rename between `path` and the spare files survive a power loss."""
        if self._durable:
            self._files.sync_directory(path.rpartition("/")[0])
            self._files.sync_directory(self._path)

    def _name(self) -> str:
        while True:
            path = f"{self._path}/{self._made:08d}.seg"
            self._made += 1
            if not self._files.exists(path):
                return path

    def _adopt(self, path: str) -> None:
        file = self._files.open(path)
        if file.size() == self._size and len(self._ready) < max(self._count_max, 1):
            self._ready.append((path, file))
        else:  # incomplete, or made for another data file size
            file.close()
            self._files.remove(path)
