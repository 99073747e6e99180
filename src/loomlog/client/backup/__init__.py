"""Backups: everything that a cluster's logs and registers hold, in a directory, made while it runs.

    <directory>/backup-….json            one backup: its logs, registers and permissions
    <directory>/<log>-<random>/…         the entries of a log, as an archive (loomlog.archive)

A further backup into the same directory writes only new entries. Files never change, so an older
backup stays what it was.

A backup has every entry that was acknowledged before it began. Registers are read before any log,
so no position that is stored in one lies behind the entries of the backup.
"""
