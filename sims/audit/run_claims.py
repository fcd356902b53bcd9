"""Compares `run.json` with what follows from the signed scenario and the ledger, field by field.

Other fields are observations, such as times and versions: nothing but the manifest vouches for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocols.evaluation import ErrorHistogram
from secagg.ledger import Reading
from sims.audit.run_files import Evidence, Row
from sims.records.run_directory import SERVED
from sims.records.run_file_names import LEDGER, METRICS, RUN, SCENARIO, SUMS
from sims.scenario.loading_and_variants import Variant
from sims.scenario.settings import Settings, insecure_seed


def misstatements(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each claim of `run.json` that other files contradict, or that nothing proves."""
    settings, path = evidence.settings, evidence.directory / SCENARIO
    if evidence.is_plain:
        if (evidence.directory / LEDGER).exists():
            yield "run.json says that the channel was plain, which keeps no ledger, but there is one"
        if settings is not None and not settings.channel.is_plain:
            yield f"run.json says that the channel was plain, but {path} says {settings.channel.name}"
    elif settings is None:
        if SCENARIO not in evidence.withheld:
            yield (
                f"{path} is missing or not as it was written: nothing proves what the settings "
                "of the run were"
            )
    elif Variant({}, settings).digest != evidence.run.get("digest"):
        yield f"{path} is not the scenario of the run that was signed: it was altered, or so was run.json"
    elif RUN not in evidence.withheld:
        yield from _disagreements_with_scenario(evidence.run, settings)


def _disagreements_with_scenario(run: Row, settings: Settings) -> Iterator[str]:
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("the channel", run["channel"], SERVED if run["channel"] == SERVED else settings.channel.name),
        ("what was trusted", run["trust"], settings.channel.trust),
        ("the key agreement", run["key_agreement"], settings.channel.key_agreement),
        ("the number of rounds", run["rounds"], settings.rounds),
        ("the algorithm", run["algorithm"], settings.algorithm.name),
    )
    for what, claimed, own in pairs:
        if claimed != own:
            yield f"run.json and the scenario disagree on {what}: {claimed} and {own}"
    extra_kinds = {row["kind"] for row in run.get("sums") or () if row.get("extra")}
    if extra_kinds != (set() if settings.tail is None else {ErrorHistogram.kind}):
        sums = f"sums of {' and '.join(sorted(extra_kinds))} were" if extra_kinds else "nothing was"
        yield f"run.json says that {sums} asked beside the training; the scenario disagrees"
    if run.get("insecure_seed") != (insecure_seed(settings.seed).hex() if settings.seeded else None):
        says = "follow" if settings.seeded else "do not follow"
        yield f"by the scenario, keys and noise {says} from its insecure_seed, and run.json says otherwise"


def impossible_claims(evidence: Evidence, reading: Reading | None, signer: bytes | None) -> Iterator[str]:
    """Yield a sentence for each number of `run.json` that cannot be, by scenario, ledger and other files.
    `signer` is the key that signed the ledger."""
    if evidence.settings is None or RUN in evidence.withheld:
        return
    wrong = {
        **_numbers_of_clients(evidence.run, evidence.settings, reading),
        **_progress(evidence),
        **_graph(evidence),
    }
    if signer is not None and evidence.run.get("server_key") not in (None, signer.hex()):
        wrong["server_key"] = "another key has signed the ledger"
    for name, why in wrong.items():
        yield f"{evidence.directory / RUN}: {name} is {evidence.run.get(name)}, but {why}"


def _numbers_of_clients(run: Row, settings: Settings, reading: Reading | None) -> dict[str, str]:
    wrong: dict[str, str] = {}
    clients, per_round, attackers = run["clients"], run["per_round"], run.get("corrupt", 0)
    planned = None if run["channel"] == SERVED else settings.partition and settings.partition.clients
    if planned and (clients > planned or (clients != planned and not settings.evaluation.held_out)):
        wrong["clients"] = f"the scenario has {planned}"
    rows = () if reading is None else reading.rows
    largest = max((row.body["cohort"] for row in rows if row.body["entry"] == "session"), default=0)
    if clients < largest:
        wrong["clients"] = f"a session of the ledger has {largest}"
    expected = min(settings.cohort.per_round or clients, clients)
    if per_round != expected:
        wrong["per_round"] = f"by the scenario, {expected} take part"
    attacked = settings.attack is not None and settings.attack.fraction > 0 and run["channel"] != SERVED
    if bool(attackers) != attacked or not 0 <= attackers < max(clients, 1):
        wrong["corrupt"] = f"by the scenario, there is {'an' if attacked else 'no'} attack"
    return wrong


def _progress(evidence: Evidence) -> dict[str, str]:
    run = evidence.run
    last = max((line.get("round", 0) for line in evidence.metrics), default=0)
    if METRICS not in evidence.withheld and evidence.metrics and run["done"] != last and evidence.finished:
        return {"done": f"the last line of metrics.jsonl is of round {last}"}
    planned = run["rounds"] if evidence.settings is None else evidence.settings.rounds
    if evidence.finished and run["done"] != planned:
        return {"done": f"a finished run has held all {planned} rounds"}
    return {}


def _graph(evidence: Evidence) -> dict[str, str]:
    claimed: Row = evidence.run.get("graph") or {}
    own = next((row for row in evidence.sessions if row.graph is not None), None)
    if not claimed or SUMS in evidence.withheld or own is None or evidence.resumed:
        return {}  # a resumed run may have lost the line of its first session
    if (claimed.get("kind"), claimed.get("neighbours"), claimed.get("threshold")) == (
        own.graph,
        own.neighbours,
        own.threshold,
    ):
        return {}
    return {"graph": f"the first session was a {own.graph} graph: {own.neighbours}, {own.threshold}"}
