"""For all tests."""

from __future__ import annotations

import gc

from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("loomlog", deadline=None)
settings.load_profile("loomlog")


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: nobody need look through them for garbage again.
    Simulations do that once a seed, which is a quarter of their time otherwise."""
    gc.collect()
    gc.freeze()
