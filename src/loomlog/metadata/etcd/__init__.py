"""Metadata in etcd: `EtcdStore`. Needs `pip install 'loomlog[etcd]'`."""

from loomlog.metadata.etcd.store import EtcdStore

__all__ = ["EtcdStore"]
