"""The storage node (vsn)."""

from loomlog.node.node import StorageNode

__all__ = ["StorageNode"]
