"""The command line, as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

Answer = dict[str, Any]
ROOT: Final = Path(__file__).parents[2]


def secagg(*arguments: str) -> Answer:
    """Its exit status, and the JSON it prints, if any."""
    environment = {**os.environ, "COLUMNS": "110", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "secagg", *arguments, "--json"],
        capture_output=True,
        cwd=ROOT,
        env=environment,
        text=True,
    )
    return {"exit": done.returncode, "output": json.loads(done.stdout) if done.stdout else None}
