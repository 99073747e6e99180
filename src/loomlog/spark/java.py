"""Checks the Java that Spark's launcher will find: it must exist and be new enough.

Without this check, a missing or old Java leads to a long trace that does not say what to do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from loomlog.errors import LoomError

JAVA_MIN: Final = 17
_ANSWER_S: Final = 30.0
_FIX: Final = (
    f"install a JDK {JAVA_MIN} or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) "
    "and set JAVA_HOME to it"
)


def require_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the `java` that Spark will run; raise a LoomError with the fix if it is unusable."""
    java = find_java(environment)
    if java is None:
        raise LoomError(f"Spark needs Java and there is none: {_FIX}")
    version = java_version(java)
    if version < JAVA_MIN:
        raise LoomError(f"Spark needs Java {JAVA_MIN} or newer, {java} is {version}: {_FIX}")
    return java


def find_java(environment: Mapping[str, str]) -> Path | None:
    """Find Java as Spark does: in JAVA_HOME if it is set, otherwise on the PATH."""
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return java if os.access(java, os.X_OK) else None
    found = shutil.which("java", path=environment.get("PATH", ""))
    return Path(found) if found else None


def java_version(java: Path) -> int:
    """Return the feature release of a JVM; 0 if unknown."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    said = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(said[1]) if said else 0


if __name__ == "__main__":
    try:
        require_java()
    except LoomError as error:
        sys.exit(str(error))
