"""docs/embedding.md: the examples work as the page says."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

from secagg import LocalSession, Trust, local_machines
from secagg.errors import ParameterError
from secagg.events import Asked
from secagg.session_params import SessionParams
from sims.deploy.client_values import answer_of
from sims.deploy.config import JoinConfig, ServeConfig, load
from sims.deploy.repeatable_query_nonce import fresh
from sims.deploy.sum_specs_file import read_table
from sims.runtime import Setting, secure_sum
from tests.sims import embedding_page as page


def compiled(code: str) -> CodeType:
    """Without what this file imports from the future."""
    return compile(code, "docs/embedding.md", "exec", dont_inherit=True)


def run_here(name: str) -> tuple[dict[str, Any], str]:
    """The names that an example leaves, and what it printed."""
    names: dict[str, Any] = {"__name__": "__example__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compiled(page.example(name)), names)  # noqa: S102  (the repository's own text)
    return names, printed.getvalue()


def lines_of(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


# --- 1 ---


def test_vectors_of_services_are_summed() -> None:
    names, printed = run_here("sum")

    assert printed == page.shown("sum")
    truth = np.sum(list(names["SERVICES"].values()), axis=0)
    for total in (*names["totals"], *names["over_tls"]):
        assert total.count == 4
        np.testing.assert_allclose(total["load"], truth, atol=1e-5)


def test_twenty_lines_are_enough() -> None:
    first = page.example("sum").split("SERVICES = ")[0]
    assert "async def contribute" in first
    assert "async def collect" in first
    assert lines_of(first) <= 20


def test_an_asyncio_program_takes_part() -> None:
    names, printed = run_here("asyncio")

    assert printed == page.shown("asyncio")
    truth = np.sum(list(names["SERVICES"].values()), axis=0)
    np.testing.assert_allclose(names["total"]["load"], truth, atol=1e-5)


# --- 2 ---


@pytest.fixture(scope="module")
def algorithm_example() -> tuple[dict[str, Any], str]:
    return run_here("algorithm")


def test_an_own_algorithm_runs_over_both_channels(algorithm_example: tuple[dict[str, Any], str]) -> None:
    names, printed = algorithm_example

    assert printed == page.shown("algorithm")
    plain, secure = names["found"].values()
    np.testing.assert_array_equal(plain, secure)
    np.testing.assert_allclose(secure, names["truth"].ravel(), atol=0.05)


def test_an_own_algorithm_is_short() -> None:
    code = page.example("algorithm").split("from protocols.run import Run")[0]
    assert lines_of(code) < 60


def test_a_lying_server_cannot_choose_a_group_of_one(algorithm_example: tuple[dict[str, Any], str]) -> None:
    names, _ = algorithm_example
    with pytest.raises(ParameterError, match="single out one client"):
        secure_sum(names["algorithm"], names["clients"], Setting(trust=Trust.MALICIOUS))


def test_a_group_without_points_keeps_its_centre(algorithm_example: tuple[dict[str, Any], str]) -> None:
    names, _ = algorithm_example
    algorithm, start = names["algorithm"], names["start"]
    steps = algorithm.round(start)
    next(steps)
    total = {"points": np.array([1.0, 1.0, 0.0, 0.0, 4.0, 2.0]), "sizes": np.array([2, 0, 4], np.uint64)}

    with pytest.raises(StopIteration) as ended:
        steps.send(total)

    model = ended.value.value.state.model
    np.testing.assert_allclose(model, [0.5, 0.5, start.model[2], start.model[3], 1.0, 0.5])


# --- 3 ---


def written(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).write_text(page.files()[name], encoding="utf-8")


def test_configurations_are_sound(tmp_path: Path) -> None:
    written(tmp_path, "serve.toml", "join.toml", "sums.toml")

    serve, join = load(tmp_path / "serve.toml", ServeConfig), load(tmp_path / "join.toml", JoinConfig)

    assert serve.session.trust == join.policy.trust == "malicious_server"
    assert (serve.session.corrupt, serve.session.min_contributors) == (
        join.policy.corrupt,
        join.policy.min_contributors,
    )
    read_table(tmp_path / "sums.toml").check_fits(serve.session.max_cohort)


def patients(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(400), rng.standard_normal((400, 2))])
    risk = 1 / (1 + np.exp(-x @ [-1.0, 2.0, 0.5]))
    return {"x": x, "ill": rng.random(400) < risk}


def pooled_regression() -> np.ndarray[Any, Any]:
    """Newton's method over all patients in one place, until nothing moves."""
    everybody = [patients(seed) for seed in (1, 2, 3)]
    x = np.concatenate([each["x"] for each in everybody])
    ill = np.concatenate([each["ill"] for each in everybody])
    weights = np.zeros(3)
    for _ in range(20):
        risk = 1 / (1 + np.exp(-x @ weights))
        weights = weights + np.linalg.solve((x.T * (risk * (1 - risk))) @ x, x.T @ (ill - risk))
    return weights


def answers(directory: Path) -> dict[int, Any]:
    """The function of every hospital, which has a directory of its own."""
    functions = {}
    for number in (1, 2, 3):
        place = directory / f"hospital-{number}"
        place.mkdir()
        written(place, "hospital.py")
        np.savez(place / "patients.npz", **patients(number))  # type: ignore[arg-type]
        names: dict[str, Any] = {"__name__": "hospital", "__file__": str(place / "hospital.py")}
        exec(compiled(page.files()["hospital.py"]), names)  # noqa: S102  (the repository's own text)
        functions[number] = names["answer"]
    return functions


def test_the_regression_is_that_of_all_patients_in_one_place(tmp_path: Path) -> None:
    """The page's table and its function, over real machines; what is left out here is the network."""
    written(tmp_path, "sums.toml")
    table, functions = read_table(tmp_path / "sums.toml"), answers(tmp_path)

    def answer(member: int, asked: Asked) -> Any:
        return answer_of(functions[member], asked)

    weights = np.zeros(3)
    for _ in range(5):
        server, clients = local_machines(
            table=table,
            params=SessionParams(trust=Trust.MALICIOUS, corrupt=1, dropout=0, sums=1),
            members=(1, 2, 3),
        )
        session = LocalSession(server, clients, answer)
        session.open()
        total = session.ask("newton", fresh(weights.astype("<f8").tobytes()))
        session.end()
        assert total["patients"][0] == 1200
        weights = weights + np.linalg.solve(total["curvature"].reshape(3, 3), total["gradient"])

    np.testing.assert_allclose(weights, pooled_regression(), atol=1e-6)
    assert f"{weights.round(3)} from 1200 patients" in page.PAGE


def test_every_host_has_what_its_files_name() -> None:
    """A key that a configuration names is made there, and a file is shown or copied there."""
    text = "\n".join(step.text for step in page.steps())
    named = set(re.findall(r'= "([\w-]+\.(?:key|pem|toml|secagg))"', text))
    made = {f"{name}.{ending}" for name in ("server", "hospital-1") for ending in ("key", "pem")}
    assert named - made - {"authority.pem", "registry.secagg", *page.files()} == set()


@pytest.mark.slow  # its parts are above: this is five sessions of processes, and takes half a minute
def test_the_hosts_of_the_page(tmp_path: Path) -> None:
    printed, expected = page.Hosts(tmp_path, Path(sys.executable).parent).run()
    assert expected
    assert printed == expected
