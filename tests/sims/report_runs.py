"""Runs that never ran, for tests of the page: numbers with the shape of real ones, the same every time."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sims.audit.audit_result import (
    Achieved,
    Audit,
    ByteTraffic,
    Canary,
    ClientDropouts,
    ClientExclusion,
    ClientLosses,
    ClientRefusal,
    CutShort,
    Exposure,
    FailedSum,
    GroupSteps,
    Guarantee,
    Integrity,
    PrivacySpending,
    Release,
    RunSummary,
    Spent,
    StageBytes,
    SumKind,
    SumPart,
)
from sims.records.run_directory import FORMAT
from sims.records.sum_records import SumRecord
from sims.report import ReportedRun

CLIENTS = 40
CORRUPT = 10
STEPS = 3
DELTA = 1e-5
_BYTES = {"advertise": 4_000, "share": 260_000, "mask": 9_300_000, "confirm": 21_000, "reveal": 130_000}


def reported_run(
    title: str = "RFA",
    *,
    algorithm: str = "rfa",
    rounds: int = 20,
    accuracy: float = 0.91,
    noise: bool = False,
    channel: str = "secure",
    seed: str | None = None,
    problems: tuple[str, ...] = (),
    status: str = "finished",
    name: str = "robust-digits",
    cell: Mapping[str, Any] | None = None,
) -> ReportedRun:
    """A run of 40 clients, 10 of them malicious, that comes to this accuracy."""
    draw = random.Random(f"{title} {rounds}")
    metrics = [_line(number, rounds, accuracy, draw, noise=noise) for number in range(rounds + 1)]
    sums = [each for number in range(rounds) for each in _sums(number, draw)]
    return ReportedRun(
        title=title,
        audit=_audit(name, title, algorithm, rounds, sums, noise, channel, seed, problems, status),
        cell={"method": title} if cell is None else cell,
        metrics=metrics,
        sums=sums,
        clients=_clients(accuracy, draw),
        corrupt=frozenset(range(CORRUPT)),
        scenario=f'name = "{name}"\nrounds = {rounds}\n\n[algorithm]\nname = "{algorithm}"\n\n'
        '[attack]\nkind = "image-negation"\nfraction = 0.25\n',
        versions={"secagg": "0.1.0", "Python": "3.11.2"},
    )


def _line(number: int, rounds: int, accuracy: float, draw: random.Random, *, noise: bool) -> dict[str, Any]:
    reached = 0.1 + (accuracy - 0.1) * (1 - 0.72**number) + draw.uniform(-0.01, 0.01)
    measured = None
    if number % max(1, rounds // 10) == 0 or number == rounds:
        measured = {
            name: _scores(min(1.0, reached + shift))
            for name, shift in {
                "common": -0.03,
                "common_benign": 0.0,
                "personal": 0.0,
                "personal_benign": 0.02,
            }.items()
        }
    return {
        "round": number,
        "completed": True,
        "facts": {"steps": draw.choice((STEPS, STEPS, STEPS, 2)), "stopped": "all steps are taken"}
        if number
        else {},
        "rho": 0.01 * number if noise else 0.0,
        "epsilon": 0.9 * number**0.5 if noise else None,
        "unnoised": 0 if noise else STEPS * number,
        "measured": measured,
    }


def _scores(accuracy: float) -> dict[str, float]:
    return {
        "mean_accuracy": accuracy,
        "pooled_loss": 2.3 * (1 - accuracy),
        "error_90": min(1.0, 2 * (1 - accuracy)),
        "worst_tenth": max(0.0, 1 - 2.4 * (1 - accuracy)),
    }


def _sums(number: int, draw: random.Random) -> list[SumRecord]:
    came = CLIENTS - draw.randrange(7)
    return [
        SumRecord(
            session=number,
            index=step,
            round=number,
            kind="step",
            invited=CLIENTS if step == 0 else came,
            masked=came,
            revealed=0,
            count=None if (number, step) == (4, 2) else came,
            failure=None,
            seconds=0.01,
        )
        for step in range(STEPS)
    ]


def _clients(accuracy: float, draw: random.Random) -> dict[str, dict[str, list[Any]]]:
    def table(shift: float) -> dict[str, list[Any]]:
        right = [max(0, min(30, round(30 * draw.gauss(accuracy + shift, 0.08)))) for _ in range(CLIENTS)]
        return {"client": list(range(CLIENTS)), "total": [30] * CLIENTS, "correct": right}

    return {"common": table(-0.03), "personal": table(0.0)}


def _audit(
    name: str,
    title: str,
    algorithm: str,
    rounds: int,
    sums: list[SumRecord],
    noise: bool,
    channel: str,
    seed: str | None,
    problems: tuple[str, ...],
    status: str,
) -> Audit:
    plain = channel == "plain"
    released = [line for line in sums if line.count is not None]
    rho = 0.01 * rounds if noise else 0.0
    spent = Spent(
        rho=rho,
        epsilon=0.9 * rounds**0.5 if noise else None,
        unnoised=0 if noise else len(released),
        delta=DELTA,
    )
    return Audit(
        subject=RunSummary(
            path=f"results/{name}/{algorithm}",
            name=name,
            label=f"method={title}",
            algorithm=algorithm,
            clients=CLIENTS,
            per_round=CLIENTS,
            dim=4810,
            attackers=CORRUPT,
            channel=channel,
            trust="curious_server",
            key_agreement="x25519",
            graph=None if plain else "complete",
            neighbours=None if plain else CLIENTS - 1,
            threshold=None if plain else 27,
            insecure_seed=seed,
            status=status,
            why=None if status == "finished" else "the user pressed Ctrl-C",
            rounds=rounds,
            done=rounds,
            seconds=41.7,
            command=f"secagg simulate results/{name}/{algorithm}/scenario.toml",
        ),
        integrity=_integrity(plain, problems, len(sums)),
        kinds=(
            SumKind(
                kind="step",
                group="model",
                times=STEPS,
                parts=(
                    SumPart(name="directions", size=4810, bits=32, bound="norm 1 at most", noisy=noise),
                    SumPart(name="weight", size=1, bits=32, bound="0 to 1,000,000", noisy=noise),
                ),
                reveals="the sum of directions towards the clients' models, and of inverse distances",
                private=noise,
            ),
        ),
        releases=tuple(_release(place, line, noise) for place, line in enumerate(released, 1)),
        stretches=(),
        spending=PrivacySpending(
            adjacency="zero-out",
            delta=DELTA,
            server=spent,
            most=spent,
            least=spent,
            larger="equal",
            why="Both count the same sums.",
            max_rho=rho or None,
            of_budgets={"algorithm": spent},
        ),
        guarantee=Guarantee(
            epsilon=spent.epsilon,
            delta=DELTA,
            rho=rho or None,
            adjacency="zero-out",
            covers=("training",) if noise else (),
            unnoised=() if noise else ("training",),
            most_spent=spent,
            why="all sums have noise" if noise else "no sum that was released has noise",
        ),
        exposures=_exposures(noise, plain),
        groups=(
            GroupSteps(
                group="model",
                planned=STEPS,
                rounds={2: 1, 3: rounds - 1},
                cut_short=(CutShort(round=5, steps=2, why="client 7 left"),),
            ),
        ),
        losses=ClientLosses(
            missed=tuple(
                ClientDropouts(round=k + 1, kind="step", stage="mask", clients=k % 5 + 1)
                for k in range(rounds)
            ),
            refused=(
                ClientRefusal(
                    round=3, kind="step", member=7, error="GroupChanged", sentence="the roster differs"
                ),
            ),
            excluded=(
                ClientExclusion(
                    round=4,
                    kind="step",
                    member=9,
                    error="FalseCount",
                    sentence="a masked count that is not 1",
                    barred=True,
                ),
            ),
            failed=(FailedSum(round=5, kind="step", why="somebody left the group"),),
        ),
        traffic=None if plain else _traffic(rounds),
        canaries=(
            Canary(kind="step", runs=2000, bound=0.4, claimed=0.9, delta=DELTA, confidence=0.95, holds=True),
        )
        if noise
        else (),
        achieved=Achieved(accuracy=0.9, error_90=0.2, worst_tenth=0.7, completed=rounds, seconds=41.7),
        remarks=("model.npz is not looked at.",),
    )


def _integrity(plain: bool, problems: tuple[str, ...], rows: int) -> Integrity:
    return Integrity(
        rows=None if plain else rows,
        head=None if plain else "ab" * 32,
        key=None if plain else "cd" * 32,
        fingerprint=None if plain else "cdcd:cdcd:cdcd:cdcd",
        expected=None,
        problems=problems,
        remarks=() if plain else ("Nobody said whose key to expect: compare the fingerprint.",),
    )


def _release(place: int, line: SumRecord, noise: bool) -> Release:
    return Release(
        number=place,
        session=line.session,
        sum=line.index or 0,
        round=line.round + 1,
        kind=line.kind,
        invited=line.invited,
        contributors=line.count or 0,
        sigmas=(0.5 if noise else None,),
        rho=0.0033 if noise else None,
        epsilon=0.31 if noise else None,
        rho_so_far=0.0033 * place if noise else 0.0,
        epsilon_so_far=0.5 * place**0.5 if noise else None,
    )


def _exposures(noise: bool, plain: bool) -> tuple[Exposure, ...]:
    if plain:
        return (Exposure(what="Everything: sums were added up in the open.", why="The channel is plain."),)
    if noise:
        return (Exposure(what="How many clients are in a sum.", why="The number of contributors is public."),)
    return (
        Exposure(
            what="Totals of the kind step carry no noise.",
            why="A total is exact: whoever knows all other inputs knows the last one. Masks hide single "
            "vectors only.",
            kind="step",
        ),
        Exposure(what="How many clients are in a sum.", why="The number of contributors is public."),
    )


def _traffic(rounds: int) -> ByteTraffic:
    stages = tuple(
        StageBytes(
            stage=stage,
            up=count * rounds,
            expected_up=count * rounds,
            down=count * rounds // 2,
            expected_down=count * rounds // 2,
            frames_up=CLIENTS * rounds,
            frames_down=CLIENTS * rounds,
        )
        for stage, count in _BYTES.items()
    )
    up, down = sum(each.up for each in stages), sum(each.down for each in stages)
    return ByteTraffic(
        stages=stages,
        sums=STEPS * rounds,
        exact=STEPS * rounds,
        differences=(),
        up=up,
        down=down,
        up_per_client=up / CLIENTS,
        down_per_client=down / CLIENTS,
        fedavg_up=4.0 * 4810 * rounds,
        fedavg_down=4.0 * 4810 * rounds,
        growth=None,
    )


def write_run(path: Path, *, title: str = "", accuracy: float = 0.9, **facts: Any) -> Path:
    """A directory as a run over plain sums leaves it."""
    path.mkdir(parents=True)
    made = reported_run(title or "RFA", accuracy=accuracy, rounds=4, channel="plain")
    _json(path / "run.json", _facts(title) | facts)
    _lines(path / "metrics.jsonl", made.metrics)
    _lines(path / "sums.jsonl", [line.to_json() for line in made.sums])
    _json(path / "clients.json", made.clients)
    _json(path / "result.json", {"corrupt": sorted(made.corrupt)})
    (path / "scenario.toml").write_text(made.scenario)
    return path


def _facts(title: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": "robust-digits",
        "cell": {"method": title} if title else {},
        "label": f"method={title}" if title else "",
        "digest": "0123456789abcdef",
        "secagg": "0.1.0",
        "python": "3.11.2",
        "channel": "plain",
        "trust": "curious_server",
        "key_agreement": "x25519",
        "insecure_seed": "ab" * 32,
        "status": "finished",
        "why": None,
        "rounds": 4,
        "done": 4,
        "started": "2026-01-01T00:00:00Z",
        "seconds": {"wall": 1.5, "cpu": 1.4},
        "clients": CLIENTS,
        "per_round": CLIENTS,
        "dim": 4810,
        "corrupt": CORRUPT,
        "graph": None,
        "server_key": None,
        "algorithm": "rfa",
        "command": "secagg simulate scenario.toml",
    }


def _json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content))


def _lines(path: Path, lines: Any) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
