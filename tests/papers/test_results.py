"""Results that are kept with the project belong to the scenarios that are shipped, as these are now."""

from __future__ import annotations

from pathlib import Path

import pytest

from sims.scenario import Settings, Variant, load
from sims.scenario.overrides_and_axes import assigned
from sims.sweep import read_records

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "papers" / "results"
SCENARIOS = (ROOT / "papers" / "scenarios", ROOT / "sims" / "scenarios")
# What is in no scenario: modules of `papers` with these names made it.
OTHERS = {"simplicial-quantiles", "splitting-limits"}


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in RESULTS.glob("*.jsonl") if path.stem not in OTHERS)
)
def test_every_result_belongs_to_a_cell(name: str) -> None:
    """If this fails, whoever runs the scenario again runs everything again."""
    (path,) = (each / f"{name}.toml" for each in SCENARIOS if (each / f"{name}.toml").exists())
    scenario = load(path, check=lambda _settings, _problems: None)
    known = {cell.digest for cell in scenario.variants}
    records = list(read_records(RESULTS / f"{name}.jsonl"))
    assert records
    assert [record.cell for record in records if record.digest not in known] == []


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"output.keep": "table"}, True),
        ({"output.identity": "server.key"}, True),
        ({"audit.canaries": 100}, True),
        ({"insecure_seed": True}, True),
        ({"insecure_seed": False}, False),
        ({"channel.workers": 2}, False),
        ({"channel.sums": 3}, False),
        ({"channel.graph": "ring"}, False),
        ({"dropout.reveal": 0.1}, False),
        ({"tail.epsilon": 1.0, "tail.delta": 1e-5}, False),
    ],
)
def test_what_decides_on_no_number_is_in_no_digest(changes: dict[str, object], same: bool) -> None:
    document = {
        "rounds": 3,
        "data": {"kind": "digits"},
        "model": {"kind": "softmax"},
        "training": {"rate": 0.1},
        "algorithm": {"name": "fedavg"},
    }
    before, after = (
        Variant({}, Settings.model_validate(each)) for each in (document, assigned(document, changes))
    )
    assert (before.digest == after.digest) == same


def test_keys_and_noise_are_repeatable_where_nothing_is_secret_and_where_it_is_asked_for() -> None:
    document = {
        "rounds": 3,
        "data": {"kind": "digits"},
        "model": {"kind": "softmax"},
        "training": {"rate": 0.1},
        "algorithm": {"name": "fedavg"},
    }
    found = {
        (kind, asked): Settings.model_validate(
            {**document, "channel": {"kind": kind}, **({} if asked is None else {"insecure_seed": asked})}
        ).seeded
        for kind in ("plain", "secure", "processes")
        for asked in (None, True, False)
    }
    assert {place for place, seeded in found.items() if seeded} == {
        ("plain", None),
        ("plain", True),
        ("secure", True),
        ("processes", True),
    }
