"""Connections to metadata repositories and storage nodes."""
