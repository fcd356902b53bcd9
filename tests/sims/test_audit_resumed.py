"""Audits of runs that were cut off in the midst of a round, and went on: what was released stays released."""

from __future__ import annotations

from pathlib import Path

import pytest

from sims.audit.audit_run import audit_run
from sims.records import RunDirectory
from sims.scenario import load
from sims.simulation import simulate
from sims.simulation.progress import Progress

SCENARIO = """
seed = 3
rounds = 3
insecure_seed = {seeded}
[data]
kind = "digits"
[partition]
clients = 6
[model]
kind = "softmax"
[training]
rate = 0.2
steps = 1
batch = 10
[algorithm]
name = "rfa"
weighted = false
[channel]
kind = "secure"
sums = 3
"""


class CutOff(BaseException):
    """As by a kill: nobody gets to tidy up."""


def cut_off(moment: Progress) -> None:
    """In the second sum of the second round, after the first one was released."""
    if (moment.done, moment.sum, moment.stage) == (1, 2, "mask"):
        raise CutOff


@pytest.mark.parametrize("seeded", [True, False])
def test_what_a_round_released_before_it_was_cut_off_counts(tmp_path: Path, *, seeded: bool) -> None:
    (tmp_path / "run.toml").write_text(SCENARIO.format(seeded=str(seeded).lower()))
    (variant,) = load(tmp_path / "run.toml").variants
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(CutOff):
        simulate(variant.settings, directory=directory, watch=cut_off)

    before = audit_run(directory)
    assert before.subject.status == "running"
    assert before.intact, before.integrity.problems
    assert [release.round for release in before.releases] == [1, 1, 1, 2]

    simulate(variant.settings, directory=directory, resume=True)
    after = audit_run(directory)
    assert after.subject.status == "finished"
    assert after.intact, after.integrity.problems
    again = [2, 2, 2] if seeded else []  # without a seed, clients would not answer the same question twice
    assert [release.round for release in after.releases] == [1, 1, 1, 2, *again, 3, 3, 3]
    assert after.integrity.lost == 2
    assert after.traffic is not None
    assert after.traffic.differences == ()
    # Who repeats a round has forgotten that it paid for it; who does not, has paid for a sum that never came.
    assert after.spending.larger == ("server" if seeded else "clients")
