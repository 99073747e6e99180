"""The `copyset` protocol in the metadata repository: the epoch store, the choice of nodesets, and
recoveries without appends."""
