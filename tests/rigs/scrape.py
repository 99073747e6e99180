"""Reads pages of metrics, as Prometheus does."""

from __future__ import annotations

import urllib.request


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def values(text: str) -> dict[str, float]:
    """Return the samples of a page: name with labels to value."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
