"""Consumer groups: who owns which shards of a log, and what is committed. Pure.

`state.py` is the shared state, one register; `assignment.py` says who should own a shard;
`consumption.py` is what one member has handed out of its shards.
"""
