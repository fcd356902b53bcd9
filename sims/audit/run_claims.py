"""Compares `run.json` with what follows from the signed scenario and the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from protocols.evaluation import ErrorHistogram
from sims.audit.run_files import Evidence, Row
from sims.records.run_directory import SERVED
from sims.records.run_file_names import LEDGER, RUN, SCENARIO
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
