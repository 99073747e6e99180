"""The `copyset` protocol on a storage node."""
