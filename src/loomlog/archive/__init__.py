"""The archive of a log: old ranges of it as Parquet files, and how they are read.

    <location>/manifest-….json     which files there are; older parts of it are folded into pages
    <location>/page-….json
    <location>/positions-….parquet  the rows of a range of positions, in order

Files never change and have names of their own, so writing one harms nobody. What belongs to the
archive is decided by one register of the cluster (`record.py`), which names the manifest; all else
in the directory is left over from a run that ended early.

Nothing here talks to a cluster: `client` reads archives, `spark` makes them.
"""
