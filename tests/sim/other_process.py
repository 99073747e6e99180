"""Runs seeds in another process, whose hashes of strings are different."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

PROGRAM = """
import json, sys
from run_seeds import Choice, run_seed
workload, *seeds = json.loads(sys.argv[1])
print(json.dumps([run_seed(Choice(seed, workload, "all")).fingerprint for seed in seeds]))
"""


def fingerprints(workload: str, seeds: Sequence[int], hash_seed: int) -> list[str]:
    environment = {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, json.dumps([workload, *seeds])]
    found = subprocess.check_output(command, env=os.environ | environment, text=True)
    return [str(fingerprint) for fingerprint in json.loads(found)]
