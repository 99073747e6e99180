"""The notebook of examples/ runs from its first cell to its last, and plots."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook.ipynb"


async def test_the_notebook_runs_and_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    notebook = json.loads(NOTEBOOK.read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [], "results are not committed"
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook
        code = compile("".join(cell["source"]), cell["id"], "exec", flags, dont_inherit=True)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
    try:
        assert names["tail"] == names["table"].num_rows == 2880
        assert min(names["took_ms"]) > 0
        assert len(pyplot.get_fignums()) == 2
    finally:
        pyplot.close("all")
