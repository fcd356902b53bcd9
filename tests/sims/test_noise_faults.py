"""Mistakes in the real code of clients and server: the tests of noise find all of them, and nothing else.

A check is wrong about correct noise once in 100,000 (`alarm_budget`). Seeds are fixed. `pytest -m slow` runs
the power study: 20 seeds for each mistake, and 60 for correct code.
"""

from __future__ import annotations

import pytest

from secagg.distributed_noise import NoiseAssumptions
from secagg.noise.rejection_sampler import HybridDraws
from secagg.sum_spec import Count, LInf, SumSpec
from sims.noise_audit.alarm_budget import NoiseTest, alarms
from sims.noise_audit.conformance import Effort, conformance
from sims.noise_audit.noise_check import NoiseTrial, run_trial
from sims.noise_audit.unmasked_sums import audited_spec
from tests.sims import noise_faults

REMOVABLE = NoiseAssumptions(clients=10, dropouts=3, colluders=1, removable=True)
FEW = NoiseAssumptions(clients=4, dropouts=1, colluders=0)


def spec_for(mistake: str) -> SumSpec:
    """Return the spec of sums in which the mistake matters."""
    if mistake in noise_faults.CHECKED:  # The norm only exceeds its bound if vectors are short.
        return audited_spec(size=50, promise=FEW, multiplier=1.0, least_scale=1000.0)
    if mistake in noise_faults.COUNTS:
        return audited_spec(size=500, promise=FEW, multiplier=1.0, bound=Count(3))
    if mistake in noise_faults.REMOVED:
        return audited_spec(size=500, promise=REMOVABLE, multiplier=1.0)
    promise = NoiseAssumptions(clients=6, dropouts=0, colluders=0)
    return audited_spec(size=2000, promise=promise, multiplier=1.0)


def alarms_of(spec: SumSpec, *, seed: int, input_sums: int = 6) -> tuple[NoiseTest, ...]:
    assert spec.promise is not None
    found = conformance(
        "sums",
        spec,
        clients=spec.promise.clients,
        dropped=max(0, spec.promise.dropouts - 1),  # so that there is surplus noise
        effort=Effort(sums=8, input_sums=input_sums),
        seed=seed.to_bytes(32, "big"),
    )
    return alarms(found.tests)


def found(mistake: str, seed: int) -> bool:
    spec = spec_for(mistake)
    assert spec.promise is not None
    with pytest.MonkeyPatch.context() as patched:
        noise_faults.ALL[mistake](patched, spec.promise.clients)
        return bool(alarms_of(spec, seed=seed, input_sums=96 if mistake in noise_faults.CHECKED else 6))


SPECS = {
    **{name: spec_for(name) for name in ("noise times 0.95", *noise_faults.CHECKED, *noise_faults.REMOVED)},
    "elements": audited_spec(size=300, promise=FEW, multiplier=2.0, bound=LInf(0.5)),
    "histogram": audited_spec(size=20, promise=REMOVABLE, multiplier=0.5, bound=Count(1, total=1)),
    "counts": audited_spec(size=300, promise=FEW, multiplier=1.0, bound=Count(3)),
    "one count": audited_spec(size=1, promise=FEW, multiplier=0.5, bound=Count(1)),
    "three counts": audited_spec(size=3, promise=FEW, multiplier=0.5, bound=Count(1, total=1)),
    "little noise on few elements": audited_spec(size=3, promise=FEW, multiplier=1 / 64),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_correct_code_raises_no_alarm(spec: SumSpec) -> None:
    assert alarms_of(spec, seed=1) == ()


@pytest.mark.parametrize("mistake", noise_faults.ALL)
def test_every_mistake_raises_an_alarm(mistake: str) -> None:
    assert found(mistake, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", noise_faults.ALL)
def test_every_mistake_raises_an_alarm_with_every_seed(mistake: str) -> None:
    assert all(found(mistake, seed) for seed in range(100, 120))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_correct_code_raises_no_alarm_with_any_seed(spec: SumSpec) -> None:
    assert [seed for seed in range(100, 160) if alarms_of(spec, seed=seed)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake",
    ["no check of the norm", "counts without their scale", "removed noise is added", "rounded down"],
)
def test_the_whole_check_covers_every_kind_of_sum(mistake: str) -> None:
    """Also if the large vector would not show the mistake."""
    with pytest.MonkeyPatch.context() as patched:
        noise_faults.ALL[mistake](patched, 4)
        assert not run_trial(NoiseTrial(clients=4, size=100, sums=1, canaries=1)).conforms


@pytest.mark.slow
def test_the_whole_check_covers_the_sampler_of_large_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = HybridDraws.draw
    monkeypatch.setattr(HybridDraws, "draw", lambda *given: draw(*given) // 2)
    assert not run_trial(NoiseTrial(clients=4, size=100, sums=1, canaries=1)).conforms


@pytest.mark.parametrize("mistake", ["no noise above 64 elements", "server rotates by other signs"])
def test_mistakes_show_in_sums_through_server_and_clients(mistake: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        noise_faults.ALL[mistake](patched, 4)
        outcome = run_trial(NoiseTrial(clients=4, size=100, sums=1, canaries=1, secure=1))
    assert any(test in outcome.session for test in outcome.alarms)
