"""Restore the copies of shards that are lost or drained. Pure.

See "Rebuilding" in docs/design/copyset.md.
"""
