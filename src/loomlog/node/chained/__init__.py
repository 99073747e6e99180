"""The `chained` protocol on a storage node."""
