"""Detects metadata that is older than what the nodes know, and brings it up to date."""
