"""Checks whether noise and encoding of sums are as promised, and how well the noise hides canaries.

Several kinds of sums are tested: of one large vector, as the user asks for, and of small ones with other
bounds, grids, drop-outs and removable noise. `alarm_budget` says how often a check is wrong.

The canary is a client that sends a vector of the largest allowed norm in half of the sums, and zeros in the
others. Zero-out adjacency compares these two inputs. Other clients send zeros: only noise hides the canary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg import LocalSession, local_machines
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError
from secagg.mask_keystream import SEED_BYTES
from secagg.session_params import SessionParams
from secagg.sum_spec import Count, LInf, SumSpec, Table
from secagg.trust_levels import Trust
from sims.console_progress import OnProgress, quiet
from sims.noise_audit.alarm_budget import NoiseTest, alarms, confidence
from sims.noise_audit.conformance import Conformance, Effort, conformance, tests_of_session
from sims.noise_audit.faults import Fault
from sims.noise_audit.law_and_epsilon_bounds import LowerBound, gaussian_epsilon, lower_bound
from sims.noise_audit.unmasked_sums import CLIP, PART, UnmaskedSums, audited_spec
from sims.text_format import counted

_LEAST_SAMPLES: Final = 100
# Sums with a canary have few clients and elements, because this test is then strongest and fastest.
CANARY_CLIENTS: Final = 2
CANARY_SIZE: Final = 4
_LARGE_SIGMA: Final = 1 << 14  # grid points: such noise is drawn by rejection, and other noise by inversion
_CANARY_SCALE: Final = 1000.0  # grid points per unit: a grid so fine that rounding does not hide a canary
_INPUT_SUMS: Final = 4  # sums of inputs other than zeros, for the large vector
_SESSION_CLIENTS: Final = 5
_SESSION_SIZE: Final = 1000
_SESSION_SUMS: Final = 6
_SESSION_MULTIPLIER: Final = 0.25  # so little noise that inputs stand out


@dataclass(frozen=True, kw_only=True)
class NoiseTrial:
    """The parameters of a trial: tests of sums of zeros and of other inputs, and canaries (inputs whose
    presence an attacker must guess). Raise `ParameterError` for fewer than 100 samples of noise."""

    clients: int
    size: int  # elements of the vector
    sums: int  # sums over zero inputs
    dropouts: int = 0  # most drop-outs for which the noise is planned
    dropped: int = 0  # clients that drop out of the sums over zero inputs
    removable: bool = False  # whether surplus noise is removed
    multiplier: float = 1.0  # standard deviation of the noise, divided by the largest norm of one client
    canaries: int  # sums with the canary, and as many without
    secure: int = 0  # the same number for sums of the real protocol, which are slower
    delta: float = 1e-5
    fault: Fault = Fault.NONE  # a fault that the test should detect
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size * self.sums < _LEAST_SAMPLES:
            raise ParameterError(
                f"noise cannot be judged by {counted(self.size * self.sums, 'element')}: the elements of a "
                f"vector times the sums over zeros must be at least {_LEAST_SAMPLES}"
            )

    def seed_bytes(self, purpose: int) -> bytes:
        return self.seed.to_bytes(SEED_BYTES - 1, "big") + bytes([purpose])


@dataclass(frozen=True)
class NoiseTrialResult:
    """The result of a trial. With correct noise, `holds` is False in at most one of 100,000 trials: if a test
    raises an alarm (`conforms`) or a lower bound exceeds `epsilon` (`bounded`)."""

    trial: NoiseTrial
    kinds: tuple[Conformance, ...]  # the first is of the large vector
    session: tuple[NoiseTest, ...]  # tests of totals of the real protocol; empty if `trial.secure` is 0
    bound: LowerBound  # from unmasked sums with and without the canary
    secure: LowerBound | None  # the same from sums of the real protocol; None if `trial.secure` is 0
    epsilon: float  # that of Gaussian noise with this multiplier, which no lower bound should exceed
    confidence: float  # of each lower bound

    @property
    def tests(self) -> tuple[NoiseTest, ...]:
        """All tests: those of the first kind first, and those of sessions last."""
        return (*(test for kind in self.kinds for test in kind.tests), *self.session)

    @property
    def alarms(self) -> tuple[NoiseTest, ...]:
        return alarms(self.tests)

    @property
    def conforms(self) -> bool:
        return not self.alarms

    @property
    def bounded(self) -> bool:
        bounds = [self.bound] if self.secure is None else [self.bound, self.secure]
        return all(bound.epsilon_gaussian <= self.epsilon for bound in bounds)

    @property
    def closeness(self) -> float | None:
        """The lower bound on epsilon divided by the true epsilon; None if the true epsilon is 0."""
        return self.bound.epsilon_gaussian / self.epsilon if self.epsilon else None

    @property
    def holds(self) -> bool:
        return self.conforms and self.bounded


def run_trial(trial: NoiseTrial, progress: OnProgress = quiet) -> NoiseTrialResult:
    """Run a trial and return its result. Raise `SpecError` if `trial.dropped` exceeds `trial.dropouts`."""
    sure = confidence(2 if trial.secure else 1)
    return NoiseTrialResult(
        trial=trial,
        kinds=tuple(_kinds(trial, progress)),
        session=tuple(_session(trial)) if trial.secure else (),
        bound=_canaries(trial, sure, progress),
        secure=_secure(trial, sure, progress) if trial.secure else None,
        epsilon=gaussian_epsilon(1 / trial.multiplier, trial.delta),
        confidence=sure,
    )


@dataclass(frozen=True)
class _SmallKind:
    """A kind of sum that every trial tests beside the large vector."""

    name: str
    spec: SumSpec
    dropped: int = 0
    input_sums: int = 12


def _kinds(trial: NoiseTrial, progress: OnProgress) -> list[Conformance]:
    promise = NoiseAssumptions(
        clients=trial.clients, dropouts=trial.dropouts, colluders=0, removable=trial.removable
    )
    spec = audited_spec(size=trial.size, promise=promise, multiplier=trial.multiplier)
    effort = Effort(sums=trial.sums, input_sums=min(_INPUT_SUMS, trial.sums))
    found = [
        conformance(
            "vector", spec, clients=trial.clients, dropped=trial.dropped, effort=effort, fault=trial.fault,
            seed=trial.seed_bytes(0), progress=progress,
        )
    ]  # fmt: skip
    for number, each in enumerate(_small_kinds(trial.multiplier)):
        found.append(
            conformance(
                each.name, each.spec, clients=_promise(each.spec).clients, dropped=each.dropped,
                effort=Effort(sums=16, input_sums=each.input_sums),
                fault=trial.fault, seed=trial.seed_bytes(8 + number),
            )
        )  # fmt: skip
    return found


def _small_kinds(multiplier: float) -> Sequence[_SmallKind]:
    removable = NoiseAssumptions(clients=10, dropouts=3, colluders=1, removable=True)
    few = NoiseAssumptions(clients=4, dropouts=1, colluders=0)
    fine = audited_spec(size=50, promise=few, multiplier=multiplier, least_scale=_CANARY_SCALE)
    elements = audited_spec(size=500, promise=few, multiplier=multiplier, bound=LInf(0.5))
    histogram = audited_spec(size=20, promise=removable, multiplier=multiplier, bound=Count(1, total=1))
    counts = audited_spec(size=500, promise=few, multiplier=multiplier, bound=Count(3))
    large = audited_spec(
        size=500, promise=few, multiplier=multiplier, least_scale=_LARGE_SIGMA / min(1.0, multiplier)
    )
    return (
        _SmallKind("removable noise", audited_spec(size=1000, promise=removable, multiplier=multiplier), 2),
        _SmallKind("fine grid", fine, 1, input_sums=96),  # a missing check of the norm shows rarely
        _SmallKind("bounded elements", elements),
        _SmallKind("histogram", histogram, 1),
        _SmallKind("counts", counts),
        _SmallKind("large noise", large),
    )


def _promise(spec: SumSpec) -> NoiseAssumptions:
    assert spec.promise is not None  # all specs here have noise
    return spec.promise


def _session(trial: NoiseTrial) -> Sequence[NoiseTest]:
    promise = NoiseAssumptions(clients=_SESSION_CLIENTS, dropouts=1, colluders=0, removable=True)
    spec = audited_spec(size=_SESSION_SIZE, promise=promise, multiplier=_SESSION_MULTIPLIER)
    return tests_of_session(spec, clients=_SESSION_CLIENTS, sums=_SESSION_SUMS, seed=trial.seed)


def _canaries(trial: NoiseTrial, sure: float, progress: OnProgress) -> LowerBound:
    present, absent = unmasked_scores(
        _canary_spec(trial),
        clients=CANARY_CLIENTS,
        runs=trial.canaries,
        fault=trial.fault,
        seed=trial.seed_bytes(1),
        progress=progress,
    )
    return lower_bound(present, absent, threshold=THRESHOLD, delta=trial.delta, confidence=sure)


def _secure(trial: NoiseTrial, sure: float, progress: OnProgress) -> LowerBound:
    present, absent = secure_scores(
        _canary_spec(trial), clients=CANARY_CLIENTS, runs=trial.secure, progress=progress
    )
    return lower_bound(present, absent, threshold=THRESHOLD, delta=trial.delta, confidence=sure)


def _canary_spec(trial: NoiseTrial) -> SumSpec:
    promise = NoiseAssumptions(clients=CANARY_CLIENTS, dropouts=0, colluders=0)
    return audited_spec(
        size=CANARY_SIZE, promise=promise, multiplier=trial.multiplier, least_scale=_CANARY_SCALE
    )


THRESHOLD = CLIP / 2  # from this score on, the canary is assumed to be in the sum


def unmasked_scores(
    spec: SumSpec,
    *,
    clients: int,
    runs: int,
    fault: Fault = Fault.NONE,
    seed: bytes = bytes(SEED_BYTES),
    progress: OnProgress = quiet,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores (first elements) of `runs` totals in which client 0 sends the canary, a vector of the
    largest norm, and of `runs` totals of zeros. Both have noise, but no masks."""
    unmasked = UnmaskedSums(spec, clients=clients, fault=fault, seed=seed)
    return _both(spec, runs, progress, lambda vector: unmasked.run(vector)[0][PART][0])


def secure_scores(
    spec: SumSpec, *, clients: int, runs: int, progress: OnProgress = quiet
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores (first elements) of `runs` totals in which client 0 sends the canary, a vector of the
    largest norm, and of `runs` totals of zeros. The real protocol computes each in a new session."""

    def total(vector: Callable[[int], dict[str, NDArray[np.float64]]]) -> float:
        server, machines = local_machines(
            table=Table({"sum": spec}),
            params=SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1),
            members=range(clients),
        )
        session = LocalSession(server, machines, lambda member, _: vector(member))
        session.open()
        return float(session.ask("sum")[PART][0])

    return _both(spec, runs, progress, total)


def _both(
    spec: SumSpec,
    runs: int,
    progress: OnProgress,
    score: Callable[[Callable[[int], dict[str, NDArray[np.float64]]]], float],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    size = spec.parts[0].size
    zeros, canary = np.zeros(size), np.zeros(size)
    canary[0] = CLIP
    present, absent = np.empty(runs), np.empty(runs)
    for run in range(runs):
        # The canary is client 0, which also is the client without noise under `Fault.SILENT`.
        present[run] = score(lambda member: {PART: zeros if member else canary})
        absent[run] = score(lambda _: {PART: zeros})
        progress("canaries", run + 1, runs)
    return present, absent
