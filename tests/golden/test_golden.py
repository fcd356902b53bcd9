"""Small runs and commands give what was recorded: models, metrics, ledgers, audits and plans.

They use only instructions that all x86-64 processors have, so that the bits do not depend on the machine.
`python -m tests.golden.record` records anew. With SECAGG_GOLDEN_EXACT=1, floats and hashes of trained models
have to be the same to the last bit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.compare import differences
from tests.golden.groups import GROUPS, SLOW, recorded
from tests.golden.record import RECORDS, text_of

MARKED = [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in GROUPS]


@pytest.mark.parametrize("group", MARKED)
def test_results_are_those_that_were_recorded(group: str, tmp_path: Path) -> None:
    golden = json.loads((RECORDS / f"{group}.json").read_text())
    now = json.loads(text_of(recorded(group, tmp_path)))
    found = differences(golden, now)
    assert not found, f"{len(found)} differences, such as\n" + "\n".join(found[:20])
