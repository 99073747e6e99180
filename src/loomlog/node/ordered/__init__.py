"""The `ordered` protocol on a storage node."""
