"""The storage nodes that are connected, and where replicas are placed."""
