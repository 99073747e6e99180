"""The examples of the documents that bring their own cluster run as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLES = {
    f"{page.relative_to(ROOT)}-{number}": block
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, block in enumerate(BLOCK.findall(page.read_text()))
    if "LocalCluster" in block
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "__main__"})


def test_features_have_an_example() -> None:
    """Each of these has an example that brings its own cluster."""
    text = "".join(EXAMPLES.values())
    for name in (
        "group(",
        "queue(",
        "transaction(",
        "expected_tail=",
        "pipeline(",
        "headers=",
        "connect_sync(",
        "timeout_s=",
        "codec=",
        "exist_ok=",
        "retention_bytes=",
    ):
        assert name in text, f"no example of {name} brings its own cluster"
