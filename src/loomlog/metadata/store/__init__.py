"""Stores for metadata: memory, SQLite or etcd."""
