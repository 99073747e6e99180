"""The `copyset` protocol: a sequencer orders a log, and every record goes to any R nodes. Pure.

A record here is what a client appended as one batch. See docs/design/copyset.md.
"""
