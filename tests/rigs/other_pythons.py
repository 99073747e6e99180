"""Run a small part of the tests with every Python that is found here, each with an installation of
its own: `make pythons`.

    python tests/rigs/other_pythons.py DIRECTORY [VERSION…]

What the tests of Spark, the browser and types need is not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ("hatchling", "editables")
NEEDED = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "psutil", "trustme", "pyyaml")
TESTS = (
    *("tests/unit/core", "tests/unit/wire", "tests/unit/storage", "tests/unit/net"),
    *("tests/unit/test_batch.py", "tests/unit/test_http.py", "tests/unit/console"),
    *("tests/cluster/test_local_cluster.py", "tests/cluster/test_client_on_servers.py"),
    *("tests/cluster/test_slow_readers.py", "tests/cluster/test_http_security.py"),
)


def versions() -> list[str]:
    """Return those that pyproject.toml promises."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = [each.rpartition(" ")[2] for each in project["classifiers"] if ":: Python ::" in each]
    return [word for word in words if "." in word]


def found(version: str) -> str | None:
    """Return the program of a Python; None if there is none, or one that does not run."""
    path = shutil.which(f"python{version}")
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    for program in filter(None, (path, *map(str, reversed(pyenv)))):
        asked = [program, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return program
    return None


def smoke(program: str, place: Path) -> bool:
    """Install loomlog for a Python, and run the tests; return whether they passed."""
    python = str(place / "bin" / "python")
    if not Path(python).exists():
        subprocess.run([program, "-m", "venv", str(place)], check=True)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    install = [python, "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
    for words in (BUILD, ("--no-build-isolation", "-e", ".[console]", *NEEDED)):
        subprocess.run([*install, *words], check=True, cwd=ROOT, env=environment)
    tests = [python, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode == 0


def main(directory: str, *wanted: str) -> int:
    results = {}
    for version in wanted or versions():
        program = found(version)
        print(f"Python {version}: {program or 'not here'}", flush=True)
        if program is not None:
            results[version] = smoke(program, Path(directory) / f"python{version}")
    for version, passed in results.items():
        print(f"Python {version}: {'passed' if passed else 'FAILED'}")
    return 0 if results and all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
