"""LogsDB: the records of `copyset` logs on a volume, in partitions of time.

    table.py        the port: logs as of one commit, commits, upkeep
    store.py        requests in, answers out, one synced commit for all that waited
    uncommitted.py  a log with what the commit under way is going to change
    partitions.py   which partition a record belongs to, when a new one begins. Pure
    rocks_logs.py, rocks_log.py, rows.py   in RocksDB: commits and upkeep, reading, formats
    memory_logs.py  in memory, for simulations

See docs/design/logsdb.md.
"""
