"""LogsDB: the records of `copyset` logs on a volume, in partitions of time.

    table.py        the port: snapshots of logs, commits, upkeep; and logs in memory
    store.py        requests in, answers out, one synced commit for all waiting requests
    rows.py         the format: which partition a record belongs to, rows as bytes. Pure
    rocks_logs.py   the port in RocksDB: commits and upkeep
    commit.py       one commit in RocksDB
    log_reader.py   one log in RocksDB
    recent.py       the last batches of a log

See docs/design/logsdb.md.
"""
