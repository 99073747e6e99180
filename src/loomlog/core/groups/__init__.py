"""Consumer groups: which member owns which shards of a log, and what is committed. Pure.

`state.py` is the shared state in a register, `assignment.py` decides which member should own a
shard, and `consumption.py` tracks what one member has handed out of its shards.
"""
