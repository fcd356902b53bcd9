"""What is recorded: small runs over all channels, their audits, and what commands say about plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.golden.command import Answer, secagg
from tests.golden.normal import normal
from tests.golden.rundir import read_model, read_run

Records = dict[str, Any]
SCENARIOS: Final = Path(__file__).parent / "scenarios"

QUICK: Final = ("plain", "secure")
PROCESSES: Final = ("processes",)

# The runs that are audited one by one, where they were made.
AUDITED: Final = (
    "robust/method=fedavg-kind=secure",
    "robust/method=fedgeomed+-kind=processes",
    "private/method=fedavg-kind=plain",
    "private/method=simplicial-kind=secure",
    "splitting/kind=processes",
)

COMMANDS: Final = (
    "plan",
    "plan fedavg --set clip=10 --clients 40 --dropout-sum 0.02 --dropout-training 0.1",
    "plan fedavg --set clip=1 --set weighted=false --epsilon 8 --delta 1e-5 --rounds 20 --dropouts 5",
    "plan rfa --trust malicious_server --corrupt 2",
    "plan fedgeomed+ --dim 650 --session-sums 8",
    "plan simplicial --set clip=10 --set loss_bound=5 --rho 0.5 --rounds 10 --removable --dropouts 9",
    "plan fedsplit --set eta=0.1 --set clip=50 --clients 2000",
    "plan simplicial --parameters",
    "plan fedavg --set clip=10 --dropout-sum 0.9",
    "params",
    "params --clients 100 --corrupt 10 --dropout 0.2 --trust malicious_server",
    "params --clients 5000 --form google --sums 3 --dropout 0.05",
    "params --clients 10 --corrupt 9",
    "noise",
    "noise --clients 50 --dim 650 --epsilon 8 --dropouts 5 --colluders 2 --sums 20 --removable",
    "noise --clients 10 --bits 4 --epsilon 0.1",
    "noise --adjacency replace --orders integer --epsilon 4",
    "preflight",
    "preflight --trust curious_server --clients 400 --graph ring --norm l2 --bound 5/2",
    "preflight --clients 4 --corrupt 3",
)


def record_runs(name: str, channels: tuple[str, ...], out: Path) -> Records:
    """A scenario's runs: what the command prints, and all that is in their directories."""
    simulated = _simulated(name, out, "--set", f"sweep.channel.kind={json.dumps(channels)}")
    runs = {each.name: read_run(each) for each in _directories(out / name)}
    return {"simulate": simulated, **runs, **_audits(out, name)}


def record_models(name: str, out: Path) -> Records:
    """A scenario with many runs: what the command prints, and their models."""
    simulated = _simulated(name, out)
    models = {each.name: read_model(each / "model.npz") for each in _directories(out / name)}
    return {"simulate": simulated, **models}


def record_commands(_out: Path) -> Records:
    """What commands answer that run nothing."""
    return _answers({each: each.split() for each in COMMANDS})


GROUPS: Final[Mapping[str, Callable[[Path], Records]]] = {
    "robust": partial(record_runs, "robust", QUICK),
    "private": partial(record_runs, "private", QUICK),
    "splitting": partial(record_runs, "splitting", QUICK),
    "catalogue": partial(record_models, "catalogue"),
    "commands": record_commands,
    "robust-processes": partial(record_runs, "robust", PROCESSES),
    "private-processes": partial(record_runs, "private", PROCESSES),
    "splitting-processes": partial(record_runs, "splitting", PROCESSES),
}
SLOW: Final = GROUPS.keys() - {"catalogue"}


def recorded(group: str, out: Path) -> Records:
    """The records of a group, whose runs are kept in a directory."""
    found = normal(GROUPS[group](out))
    assert isinstance(found, dict)
    return found


def _simulated(name: str, out: Path, *more: str) -> Answer:
    return secagg("simulate", str(SCENARIOS / f"{name}.toml"), "--out", str(out), *more)


def _directories(sweep: Path) -> list[Path]:
    return sorted(each for each in sweep.iterdir() if each.is_dir())


def _audits(out: Path, name: str) -> Records:
    """Of all runs of a scenario beside each other, and of some alone."""
    alone = [run for run in AUDITED if run.startswith(f"{name}/") and (out / run).exists()]
    return _answers({f"audit {each}": ("audit", str(out / each)) for each in (name, *alone)})


def _answers(asked: Mapping[str, Sequence[str]]) -> Records:
    """What commands answer, two of them at a time."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(asked, pool.map(lambda words: secagg(*words), asked.values()), strict=True))
