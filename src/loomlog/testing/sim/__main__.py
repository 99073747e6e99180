"""`python -m loomlog.testing.sim`: see run.py."""

import os
import sys

from loomlog.testing.sim.run import main

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") is None:
        # A program that iterates over a set of strings must at least do the same in a replay.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "loomlog.testing.sim", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
