"""The command line, as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

Answer = dict[str, Any]
ROOT: Final = Path(__file__).parents[2]
# Which instructions numpy chooses at run time. Their names differ between versions of numpy.
NUMPY_CHOOSES: Final[list[str]] = import_module("numpy._core._multiarray_umath").__cpu_dispatch__

# Instructions that all x86-64 processors have. With others, the last bits of a trained model differ between
# kinds of processors; noise depends on all of them, and so does the direction in which a value is rounded.
SAME_BITS: Final = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "NPY_DISABLE_CPU_FEATURES": " ".join(NUMPY_CHOOSES),
    "OPENBLAS_CORETYPE": "Nehalem",
}


def secagg(*arguments: str) -> Answer:
    """Its exit status, and the JSON it prints, if any."""
    environment = {**os.environ, **SAME_BITS, "COLUMNS": "110", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "secagg", *arguments, "--json"],
        capture_output=True,
        cwd=ROOT,
        env=environment,
        text=True,
    )
    return {"exit": done.returncode, "output": json.loads(done.stdout) if done.stdout else None}
