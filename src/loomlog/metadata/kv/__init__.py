"""Registers and leases."""
