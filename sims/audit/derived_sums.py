"""Derives the kinds of sums of a run from its scenario: parts, bounds, noise, and what a total reveals.

What a total reveals is a property of the algorithm, so it is taken from the program, not from `run.json`. The
algorithm is built as for the run, from the settings and the numbers of parameters and clients that `run.json`
names. If these were false, the specifications would not be those in the ledger, by their digests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from protocols.algorithm import AnyAlgorithm
from protocols.catalogue import find
from protocols.evaluation import Evaluation
from protocols.serialisation import as_vector
from secagg.errors import SecaggError
from secagg.ledger import Reading
from secagg.sum_spec import SumSpec
from sims.audit.run_files import Evidence, Row
from sims.records.run_directory import SERVED
from sims.records.run_file_names import RUN
from sims.records.sum_descriptions import described
from sims.scenario.error_histogram import tail_measures
from sims.scenario.settings import Settings


@dataclass(frozen=True)
class DerivedSums:
    """The kinds of sums of a run, as in `run.json` (`rows`), and what is wrong with those that it claims."""

    rows: Sequence[Row]
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def derived_sums(evidence: Evidence, reading: Reading | None) -> DerivedSums:
    """Return the kinds of sums of a run, derived from its scenario if possible, else from `run.json`."""
    claimed: Sequence[Row] = evidence.run.get("sums") or ()
    if RUN in evidence.withheld:
        return DerivedSums(())
    same_version = evidence.run.get("secagg") == metadata.version("secagg")
    built = None if evidence.settings is None else list(_built(evidence.settings, evidence.run))
    if not built or not same_version:
        why = "another version has written the run" if not same_version else "the scenario does not say it"
        return DerivedSums(claimed, (), (f"what sums reveal is what run.json says: {why}",))
    for algorithms in built:
        rows = _rows(algorithms)
        if rows == claimed:
            return DerivedSums(rows, tuple(_foreign(algorithms, reading)))
    why = "is not what the algorithm of the scenario asks for, with that many parameters and clients"
    return DerivedSums(_rows(built[0]), (f"{evidence.directory / RUN}: sums {why}",))


Algorithms = tuple[AnyAlgorithm, AnyAlgorithm | None]  # of the training, and of the error histogram, if any


def _rows(algorithms: Algorithms) -> list[dict[str, Any]]:
    training, tail = algorithms
    rows = described(training) + ([] if tail is None else described(tail, extra=True))
    found: list[dict[str, Any]] = json.loads(json.dumps(rows))
    return found


def _foreign(algorithms: Algorithms, reading: Reading | None) -> Iterator[str]:
    """Yield a sentence for each kind of sum of the ledger whose specification the algorithms do not have."""
    tables: list[Mapping[str, SumSpec]] = [each.table or {} for each in algorithms if each is not None]
    known = {(kind, spec.digest.hex()) for table in tables for kind, spec in table.items()}
    rows = [] if reading is None else [row.body for row in reading.rows if row.body["entry"] == "asked"]
    for kind, spec in dict.fromkeys((body["kind"], body["spec"]) for body in rows):
        if (kind, spec) not in known:
            yield f"sums of {kind} have another specification in the ledger than by the scenario"


def _built(settings: Settings, run: Row) -> Iterator[Algorithms]:
    """Yield the algorithms that the run may have had; none if the settings do not suffice."""
    from sims.scenario.algorithm_builder import build  # slow to import: it needs torch
    from sims.scenario.evaluation_sum import evaluated

    dim, clients = int(run["dim"]), int(run["clients"])
    known: dict[str, Any] = {"rate": settings.training.rate, "population": clients}
    if settings.training.steps is not None:
        known["steps"] = settings.training.steps
    try:
        layers = find(settings.algorithm.name).index_range_parameters
        if any(isinstance(settings.algorithm.parameters.get(name), str) for name in layers):
            return  # names of layers, which only the model can tell
        training = build(
            settings,
            dim=dim,
            clients=settings.cohort.per_round or clients,
            known=known,
            initial=as_vector(np.zeros(dim)),
        )
        tail = None
        if settings.tail is not None:
            measures = tail_measures(settings, settings.tail, clients)
            tail = Evaluation(dim=dim, clients=clients, measures=measures)
        if run["channel"] == SERVED:
            yield evaluated(training, settings, has_classes=True), None
        yield training, tail
    except (SecaggError, KeyError, TypeError):
        return
