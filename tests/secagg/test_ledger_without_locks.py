"""Without `fcntl`, as on Windows, sums in one process and the network work. Ledgers say what they lack."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from secagg import ClientLedger, read_ledger
from secagg.errors import LedgerError

ROOT = Path(__file__).resolve().parents[2]

# What Windows does not have.
BLOCKED = """
import os, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "fcntl":
            raise ModuleNotFoundError(name)

sys.modules.pop("fcntl", None)
sys.meta_path.insert(0, Blocker())
import cryptography, msgpack, numpy, trio  # they and the standard library ask for the system's name
for name in ("register_at_fork", "O_DIRECTORY", "O_CLOEXEC", "pwrite"):
    delattr(os, name)
"""

WITHOUT_A_LEDGER = """
import secagg, secagg.net
params = secagg.SessionParams(trust="curious_server", corrupt=0)
total = secagg.sum_securely([[1.0], [2.0], [4.0]], bound=secagg.LInf(9.0), bits=32, params=params)
print(total.values.round(3))
"""

WITH_A_LEDGER = """
from secagg import ClientLedger
from secagg.errors import LedgerError
try:
    ClientLedger.create("new.ledger", member=1)
except LedgerError as error:
    print("fcntl" in str(error))
"""


def run_without_fcntl(program: str, directory: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED + program],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_sums_and_the_network_do_without_file_locks(tmp_path: Path) -> None:
    assert run_without_fcntl(WITHOUT_A_LEDGER, tmp_path) == "[7.]\n"


def test_a_ledger_says_that_it_needs_file_locks(tmp_path: Path) -> None:
    assert run_without_fcntl(WITH_A_LEDGER, tmp_path) == "True\n"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def closed_ledger(tmp_path: Path) -> Path:
    path = tmp_path / "client.ledger"
    ClientLedger.create(path, member=1).close()
    return path


@pytest.mark.parametrize("use", [ClientLedger.create, ClientLedger.open])
def test_without_locks_no_ledger_is_opened_for_writing(
    use: Callable[..., ClientLedger], closed_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # an import of it fails
    with pytest.raises(LedgerError, match="fcntl"):
        use(closed_ledger, member=1)


def test_without_locks_a_ledger_can_still_be_read(
    closed_ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert read_ledger(closed_ledger).owner.member == 1
