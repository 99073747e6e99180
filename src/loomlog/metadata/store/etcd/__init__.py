"""Metadata in etcd: `EtcdStore`. Needs `pip install 'loomlog[etcd]'`."""

from loomlog.metadata.store.etcd.store import EtcdStore

__all__ = ["EtcdStore"]
