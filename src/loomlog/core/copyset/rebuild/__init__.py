"""Restore the copies of shards that are lost or drained. Pure. Not wired yet: nothing runs it.

See "Rebuilding" in docs/design/copyset.md.
"""
