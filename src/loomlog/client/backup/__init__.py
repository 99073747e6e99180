"""Backups of a running cluster: the contents of its logs and registers, in a directory.

    <directory>/backup-….json            one backup: its logs, registers and permissions
    <directory>/<log>-<random>/…         the entries of a log, as an archive (loomlog.archive)

A later backup into the same directory writes only new entries. Files never change, so older backups
stay as they are.

A backup has every entry that was acknowledged before it began. Registers are read before any log,
so no position that is stored in a register is beyond the entries in the backup.
"""
