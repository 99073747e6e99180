"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("loomlog", deadline=None)
settings.load_profile("loomlog")
