"""The archive of a log: its old entries as Parquet files, and code to read and write them.

    <location>/manifest-….json     the list of files; older parts of it are moved to pages
    <location>/page-….json
    <location>/positions-….parquet  the rows of a range of positions, in order

Files never change and have unique names, so a new file cannot damage the archive. One register of
the cluster (`record.py`) decides what belongs to the archive, by naming the manifest; all other
files are left over from runs that ended early.

Nothing here communicates with a cluster: `client` reads archives, `spark` makes them.
"""
