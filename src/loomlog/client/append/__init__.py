"""Appends: gathered into batches and delivered exactly once."""
