"""The `chained` protocol: a sequencer hands out positions, clients write down chains. Pure.

Every operation is a generator: it yields what to ask next and is sent the answers (messages.py).
Who drives it owns the clock, the network and the patience; an answer that does not come is `Lost`.
docs/adr/0012-chained-addresses.md says why it is safe.
"""
