"""Exactly-once publication of staged entries."""
