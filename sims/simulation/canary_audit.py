"""Tests the noise of a run: of its own specs in sums of known inputs, and in the sums of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protocols.algorithm import AnyAlgorithm
from secagg.sum_spec import SumSpec
from sims.coordination.spending import delta_of
from sims.runtime.sum_and_dropout_settings import OnTotal
from sims.scenario.settings import Settings

_DELTA: Final = 1e-5
# Of noise in a run. Specs and the run's own sums are separate kinds, which share the false-alarm rate.
_MOST_KINDS: Final = 32
_IN_PROCESS: Final = ("plain", "secure")  # kinds of channels whose clients are in this process
_NOT_HERE: Final = "the inputs of clients in other processes are not known to the one that simulates"
_TAMPERED: Final = "attackers change their answers after encoding, so their inputs are not known"
_NO_SUM: Final = "no sum of this kind was released that could be tested"


class NoiseAudit:
    """The tests of the noise of a run. `on_total` returns what a channel must call for each of its totals, so
    that the run's own sums are tested, too. With `audit.canaries = 0`, nothing is tested."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._observed: dict[tuple[str, str], Any] = {}  # by part of the run and kind of sum

    def on_total(self, part: str, algorithm: AnyAlgorithm) -> OnTotal | None:
        """Return the function to call for the totals of one part of the run, "training" or "tail"."""
        if not self._settings.audit.canaries or self._why_not:
            return None
        from sims.simulation.noise_in_run import NoiseInRun

        for kind, spec in _private(algorithm).items():
            self._observed[part, kind] = NoiseInRun(spec, kinds=_MOST_KINDS)

        def add(kind: str, inputs: Any, contributors: tuple[int, ...], total: Any) -> None:
            observed = self._observed.get((part, kind))
            if observed is not None:
                observed.add(inputs, contributors, total)

        return add

    @property
    def _why_not(self) -> str:
        """Why the run's own sums cannot be tested; empty if they can."""
        if self._settings.channel.kind not in _IN_PROCESS:
            return _NOT_HERE
        attack = self._settings.attack
        return _TAMPERED if attack is not None and attack.level == "message" else ""

    def facts(self, algorithms: Mapping[str, AnyAlgorithm]) -> dict[str, Any]:
        """Test the noise of every kind of sum that has noise, and return JSON values: "canaries", the number
        of sums with a canary (a known input) per test, "specs", the outcomes of all tests of the run's specs,
        and "run", those of the run's own sums. The keys of `algorithms` are the parts of the run."""
        found = [
            (part, kind, spec) for part, each in algorithms.items() for kind, spec in _private(each).items()
        ]
        assert 2 * len(found) <= _MOST_KINDS  # else the false-alarm rate would be higher than is said
        return {
            "canaries": self._settings.audit.canaries,
            "specs": [
                self._spec_facts(part, kind, spec, number) for number, (part, kind, spec) in enumerate(found)
            ],
            "run": [self._run_facts(part, kind) for part, kind, _ in found],
        }

    def _spec_facts(self, part: str, kind: str, spec: SumSpec, number: int) -> dict[str, Any]:
        """Test one kind of sum with the run's own spec, in its real size, and return the outcome."""
        from sims.noise_audit.own_noise import own_noise

        delta = delta_of(self._settings, part)
        given, per_round = self._settings, self._settings.cohort.per_round
        outcome = own_noise(
            kind,
            spec,
            rosters=() if per_round is None else (per_round,),
            canaries=given.audit.canaries,
            delta=_DELTA if delta is None else delta,
            kinds=_MOST_KINDS,
            seed=given.seed * 64 + number,
        )
        cases = outcome.conformances
        return {
            "part": part,
            "kind": kind,
            "rho": outcome.rho,
            "multiplier": (2 * outcome.rho) ** -0.5,
            "delta": _DELTA if delta is None else delta,
            "epsilon": outcome.epsilon,
            "epsilon_gaussian": outcome.bound.epsilon_gaussian,
            "epsilon_clopper_pearson": outcome.bound.epsilon_clopper_pearson,
            "confidence": outcome.confidence,
            "runs_per_arm": outcome.runs,
            "elements": cases[0].elements,
            "cases": [
                {
                    "clients": each.clients,
                    "dropped": each.dropped,
                    "present": each.present,
                    "sums": each.sums,
                    "input_sums": each.input_sums,
                }
                for each in cases
            ],
            "tests": outcome.tests,
            "alarms": [vars(test) for test in outcome.alarms],
            "variance_ratio": outcome.variance_ratio,
            "noise_conforms": not outcome.alarms,
            "bound_conforms": outcome.bounded,
            "holds": not outcome.alarms and outcome.bounded,
        }

    def _run_facts(self, part: str, kind: str) -> dict[str, Any]:
        """Return the outcome of the tests of one kind of the run's own sums."""
        observed = self._observed.get((part, kind))
        result = None if observed is None else observed.result()
        if result is None or not result.sums:
            why = self._why_not or _NO_SUM
            return {"part": part, "kind": kind, "sums": 0, "why_not": why, "holds": True}
        return {
            "part": part,
            "kind": kind,
            "sums": result.sums,
            "skipped": result.skipped,
            "tests": len(result.tests),
            "alarms": [vars(test) for test in result.alarms],
            "variance_ratio": result.variance_ratio,
            "why_not": "",
            "holds": not result.alarms,
        }


def _private(algorithm: AnyAlgorithm) -> dict[str, SumSpec]:
    return {kind: spec for kind, spec in (algorithm.table or {}).items() if spec.is_private}
