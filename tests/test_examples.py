"""Every program in `examples` runs to its end, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))


def test_every_program_is_in_the_table() -> None:
    table = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in PROGRAMS if f"| `{path.name}` |" not in table] == []


@pytest.mark.parametrize(
    "program",
    [pytest.param(each, marks=[pytest.mark.slow] * (each.stem == "robust_training")) for each in PROGRAMS],
    ids=[path.stem for path in PROGRAMS],
)
def test_it_runs(program: Path, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout
