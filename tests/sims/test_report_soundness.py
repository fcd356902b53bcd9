"""What a page says of a run whose measurements do not hold, and of one that cost more than it released."""

from __future__ import annotations

from dataclasses import replace

from sims.report import page
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
