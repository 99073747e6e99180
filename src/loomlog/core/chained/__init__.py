"""The `chained` protocol: a sequencer hands out positions, and clients write blocks down chains.
Pure.

Every operation is a generator of requests (core/requests.py, messages.py). docs/design/chained.md
explains why the protocol is safe.
"""
