"""Become another program that ends when the parent does: for servers that are not ours."""

from __future__ import annotations

import os
import sys

from loomlog.cli.processes.process import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])
