"""What a page says of a run whose measurements do not hold, and of one that cost more than it released."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sims.report import page
from sims.report.headline import figures
from tests.sims.report_runs import reported_run

REFUTED = "The measurements of this run do not hold"


def test_bytes_or_canaries_that_refute_the_run_are_told_first() -> None:
    sound = reported_run()
    assert REFUTED not in page([sound])
    traffic = sound.audit.traffic
    assert traffic is not None
    wrong = replace(sound, audit=replace(sound.audit, traffic=replace(traffic, wrong=1)))
    assert wrong.audit.intact
    assert REFUTED in page([wrong])


def test_epsilon_is_by_the_larger_count() -> None:
    """Clients also pay for sums that failed after they had answered."""
    run = reported_run(noise=True)
    spent = run.audit.spending.server
    assert spent.epsilon is not None
    more = replace(spent, rho=2 * spent.rho, epsilon=1.5 * spent.epsilon)
    paid = replace(run, audit=replace(run.audit, spending=replace(run.audit.spending, most=more)))
    assert run.training_spent == spent
    assert paid.training_spent == more
    (shown,) = [each.value for each in figures([paid]) if each.name == "Epsilon"]
    assert float(shown) == pytest.approx(1.5 * spent.epsilon, rel=0.05)
