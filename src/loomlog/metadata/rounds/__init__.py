"""Durable storage of commit rounds: a file, or a quorum of metadata repositories."""
