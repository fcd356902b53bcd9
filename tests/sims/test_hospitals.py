"""examples/hospitals: few lines of code, shown in docs/embedding.md, that train whatever is killed."""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from secagg.ledger import read_ledger
from sims.audit.audit_run import audit_run
from sims.audit.ledger_audit import audit_ledgers
from tests.sims.embedding_page import PAGE, ROOT
from tests.sims.hospitals import EXAMPLE, HOSPITALS, PATIENCE, Hospitals

MOST_LINES = 15
_SHOWN = re.compile(r"^<!-- file: ([\w/.]+) -->\n```python\n(.*?)^```$", re.M | re.S)


def code_lines(source: str) -> set[int]:
    """The lines that have code on them: no blank ones, no comments, no docstring."""
    tree = ast.parse(source)
    nodes = [node for node in tree.body if not _is_text(node)]
    spans = ((node.lineno, node.end_lineno or node.lineno) for node in nodes)
    lines = {line for first, last in spans for line in range(first, last + 1)}
    return {line for line in lines if source.splitlines()[line - 1].split("#")[0].strip()}


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def terms_lines(source: str) -> int:
    """The lines of model.py that are neither the model nor the data: the terms, and what they import."""
    tree = ast.parse(source)
    own = [each for each in tree.body if isinstance(each, ast.Assign)]
    own += [each for each in tree.body if isinstance(each, ast.ImportFrom) and "sims" in str(each.module)]  # type: ignore[misc]
    return sum((each.end_lineno or each.lineno) - each.lineno + 1 for each in own)


@pytest.mark.parametrize("name", ["server.py", "client.py"])
def test_a_program_has_few_lines(name: str) -> None:
    """With the terms, which both import."""
    terms = terms_lines((EXAMPLE / "model.py").read_text(encoding="utf-8"))
    assert terms > 1
    own = len(code_lines((EXAMPLE / name).read_text(encoding="utf-8")))
    assert own + terms <= MOST_LINES


def test_the_page_shows_the_files() -> None:
    shown = dict(_SHOWN.findall(PAGE))
    assert shown.keys() == {path.relative_to(ROOT).as_posix() for path in EXAMPLE.glob("*.py")}
    for name, text in shown.items():
        assert text == (ROOT / name).read_text(encoding="utf-8"), name


@pytest.fixture
def hospitals(tmp_path: Path) -> Iterator[Hospitals]:
    made = Hospitals(tmp_path, Path(sys.executable).parent, ROOT)
    yield made
    made.end()


def check_models(directory: Path) -> None:
    """All have the same model, and it is a good one. Every hospital has its own besides."""
    sys.path.insert(0, str(directory))
    try:
        import model
    finally:
        sys.path.remove(str(directory))
        sys.modules.pop("model", None)
    common = torch.load(directory / "model.pt")
    own = []
    for number in HOSPITALS:
        received, personal = torch.load(directory / f"hospital-{number}.pt")
        assert all(torch.equal(received[name], common[name]) for name in common)
        own.append(np.concatenate([each.numpy().ravel() for each in personal.values()]))
        net = model.Net()
        net.load_state_dict(common)
        inputs, targets = model.patients(number)[1].tensors
        assert (net(inputs).argmax(1) == targets).float().mean() > 0.85
    assert not np.array_equal(own[0], own[1])


def check_ledgers(directory: Path) -> None:
    """They verify, and no round was trained twice."""
    asked = [row.body for row in read_ledger(directory / "run/ledger").rows if row.body["entry"] == "asked"]
    trained = [body["round"] for body in asked]
    assert trained == sorted(trained)
    assert audit_run(directory / "run").integrity.problems == ()
    ledgers = [directory / f"hospital-{number}.ledger" for number in HOSPITALS]
    assert all(read_ledger(path).rows for path in ledgers)
    together = audit_ledgers([directory / "run/ledger", *ledgers])
    assert together.all_problems == ()
    assert together.compared > 0
    assert [each.owner for each in together.ledgers] == ["the server", "client 1", "client 2", "client 3"]


def test_ctrl_c_ends_a_hospital_that_no_server_answers(hospitals: Hospitals) -> None:
    program = hospitals.hospital(3, "client_asyncio.py")
    wait_for_file(hospitals.directory / "hospital-3.ledger")
    time.sleep(1)  # it tries to connect
    program.interrupt()


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.1)


@pytest.mark.slow
def test_ctrl_c_ends_a_hospital_that_trains(hospitals: Hospitals) -> None:
    """It goes on when it is started again."""
    server = hospitals.server()
    others = [hospitals.hospital(1), hospitals.hospital(2)]
    interrupted = hospitals.hospital(3, "client_asyncio.py")
    server.wait_for_rounds(2)
    interrupted.interrupt()
    again = hospitals.hospital(3, "client_asyncio.py")
    for program in (server, again, *others):
        program.wait()
    check_models(hospitals.directory)
    check_ledgers(hospitals.directory)


@pytest.mark.slow
def test_the_programs_train_whatever_is_killed(hospitals: Hospitals) -> None:
    train_and_kill(hospitals)


def train_and_kill(hospitals: Hospitals) -> None:
    """Run the example. Kill a hospital and then the server while they train, and start each again."""
    server = hospitals.server()
    others = [hospitals.hospital(1), hospitals.hospital(3, "client_asyncio.py")]
    killed = hospitals.hospital(2)
    server.wait_for_rounds(2)
    killed.kill()
    again = hospitals.hospital(2)
    server.wait_for_rounds(5)
    server.kill()
    second = hospitals.server()
    for program in (second, again, *others):
        program.wait()
    assert second.rounds
    assert not set(server.rounds) & set(second.rounds)
    check_models(hospitals.directory)
    check_ledgers(hospitals.directory)
