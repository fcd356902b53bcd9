"""Run directories for tests of audits: quadratic clients, real machines, and the files that a run leaves.

They are written in the format of `sims.records`, without data sets, models and torch, so that a test can
afford one for every graph, trust level and pattern of drop-outs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.privacy_budget import PrivacyBudget
from protocols.quadratic_learner import QuadraticLearner
from protocols.run import Run
from secagg.distributed_noise import NoiseAssumptions
from secagg.keys import Identity
from secagg.ledger import Head, ServerLedger
from secagg.noise.privacy_goal import Goal
from sims.coordination.run_writer import as_toml
from sims.records import RunDirectory
from sims.records.ledger_signature import SignedHead, write_head
from sims.records.manifest import FileStamp, Manifest
from sims.records.run_directory import FORMAT, LinesFile
from sims.records.sum_descriptions import described
from sims.records.sum_records import SessionRecord, StageRecord, SumRecord
from sims.runtime import Setting, insecure_plain_sum, secure_sum
from sims.scenario.loading_and_variants import Variant
from sims.scenario.settings import Settings

DIM = 3
DELTA = 1e-5


def identity() -> Identity:
    return Identity.from_secret(b"server's key".ljust(32, b"."))


def noisy(
    clients: int, *, epsilon: float = 2.0, rounds: int = 2, dropouts: int = 0, removable: bool = False
) -> FedAvg:
    """Federated averaging with noise on everything, for so many rounds."""
    privacy = PrivacyBudget(
        promise=NoiseAssumptions(clients=clients, dropouts=dropouts, colluders=0, removable=removable),
        goal=Goal(epsilon=epsilon, delta=DELTA),
        rounds=rounds,
    )
    return FedAvg(dim=DIM, clients=clients, clip=1.0, weighted=False, privacy=privacy)


def _scenario(algorithm: AnyAlgorithm, setting: Setting, rounds: int, *, plain: bool) -> dict[str, Any]:
    """One that says of a run what its `run.json` says, and has its digest."""
    return {
        "rounds": rounds,
        "insecure_seed": False,
        "data": {"kind": "digits"},
        "model": {"kind": "softmax"},
        "training": {"rate": 0.5, "steps": 1},
        "algorithm": {"name": type(algorithm).__name__},
        "channel": {
            "kind": "plain" if plain else "secure",
            "trust": str(setting.trust),
            "key_agreement": str(setting.key_agreement),
        },
    }


def digest_of(path: Path) -> str:
    """Of the run in that directory."""
    return str(RunDirectory(path).facts()["digest"])


@dataclass(frozen=True)
class FileLogger:
    """Writes records as a run does."""

    lines: LinesFile
    part: str = "training"

    def on_session(self, record: SessionRecord) -> None:
        self.lines.add(replace(record, part=self.part).to_json())

    def on_sum(self, record: SumRecord) -> None:
        self.lines.add(replace(record, part=self.part).to_json())

    def on_stage(self, record: StageRecord) -> None:
        pass


def make_run(
    path: Path,
    algorithm: AnyAlgorithm,
    setting: Setting | None = None,
    *,
    rounds: int = 2,
    plain: bool = False,
    clients: int | None = None,
    facts: Mapping[str, Any] | None = None,
    manifest: bool = False,
) -> Path:
    """A finished run of so many rounds, by an earlier version or, with a manifest, by this one."""
    setting = Setting() if setting is None else setting
    count = algorithm.clients if clients is None else clients
    run = RunDirectory(path)
    run.make()
    document = _scenario(algorithm, setting, rounds, plain=plain)
    digest = Variant({}, Settings.model_validate(document)).digest
    run.write("scenario.toml", as_toml({"name": path.name, **document}).encode())
    lines, metrics = (LinesFile.create(run / name) for name in ("sums.jsonl", "metrics.jsonl"))
    ledger = None if plain else ServerLedger.create(run / "ledger", identity=identity().public)
    setting = replace(setting, log=FileLogger(lines), ledger=ledger)
    rng = np.random.default_rng(1)
    learners = {k: QuadraticLearner(rng.normal(size=algorithm.dim)) for k in range(count)}
    channel = (insecure_plain_sum if plain else secure_sum)(algorithm, learners, setting)
    server = Run(algorithm, channel, algorithm.start(np.zeros(algorithm.dim)))
    metrics.add({"round": 0, "completed": True, "measured": {"common": {"mean_accuracy": 0.1}}})
    for number in range(1, rounds + 1):
        report = server.round()
        failure = None if report.failure is None else str(report.failure)
        measured = {"common": {"mean_accuracy": 0.5 + number / 100, "error_90": 0.5, "worst_tenth": 0.25}}
        metrics.add(
            {
                "round": number,
                "completed": report.completed,
                "failure": failure,
                "facts": {name: str(fact) for name, fact in report.facts.items()},
                "measured": measured,
            }
        )
    channel.close()
    spends = sorted(channel.spends().values(), key=lambda spend: (spend.charge, spend.unnoised))
    if ledger is not None:
        write_head(run, SignedHead.make(ledger.head, run=digest, identity=identity(), has_manifest=manifest))
        head = ledger.head
        ledger.close()
    most, least = ({"rho": each.rho, "unnoised": each.unnoised} for each in (spends[-1], spends[0]))
    run.write_json(
        "spend.json",
        {
            "adjacency": "zero-out",
            "server": {},
            "clients": {"most": most, "least": least},
            "max_rho": algorithm.max_rho,
            "delta": None if algorithm.budget is None else DELTA,
        },
    )
    run.write_json(
        "run.json",
        {
            "format": FORMAT,
            "name": path.name,
            "label": path.name,
            "digest": digest,
            "channel": "plain" if plain else "secure",
            "trust": str(setting.trust),
            "key_agreement": str(setting.key_agreement),
            "insecure_seed": None,
            "status": "finished",
            "why": None,
            "rounds": rounds,
            "done": rounds,
            "seconds": {"wall": 1.5, "cpu": 1.0},
            "clients": count,
            "per_round": algorithm.clients,
            "dim": algorithm.dim,
            "corrupt": 0,
            "graph": None,
            "server_key": None if plain else identity().public.hex(),
            "algorithm": type(algorithm).__name__,
            "command": f"secagg simulate {path.name}/scenario.toml",
            "sums": described(algorithm),
            **(facts or {}),
        },
    )
    if manifest:
        sign(path, head=None if plain else head)
    return path


def sign(path: Path, *, head: Head | None, signer: Identity | None = None, status: str = "finished") -> None:
    """Write a manifest of the files as they are now, as the server with this key would."""
    run = RunDirectory(path)
    grown = {name: FileStamp.of_file(path / name) for name in ("sums.jsonl", "metrics.jsonl")}
    left_out = {*grown, "manifest.json", "ledger", "ledger-seal", "report.html"}
    manifest = Manifest(
        run=digest_of(path),
        status=status,
        version="0",
        files={each.name: FileStamp.of_file(each) for each in path.iterdir() if each.name not in left_out},
        growing=grown,
        ledger=head,
    )
    own = None if head is None and signer is None else signer or identity()
    run.write("manifest.json", manifest.signed(own).encode())
