"""Stores of the `chained` protocol: write-once blocks in RocksDB and files."""
