"""Registers, leases and checkpoints."""
