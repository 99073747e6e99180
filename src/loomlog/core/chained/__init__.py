"""The `chained` protocol: a sequencer hands out positions, clients write down chains. Pure.

Every operation is a generator of requests (core/requests.py, messages.py). docs/design/chained.md
says why it is safe.
"""
