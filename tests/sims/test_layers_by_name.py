"""Layers of a model by name, as an algorithm's ranges; and runs that begin with the model of another."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl.flat_model import parameter_slices
from fl.models import build
from protocols.catalogue import find
from protocols.model_index_ranges import IndexRanges
from secagg.errors import ParameterError
from sims.cli import main
from sims.scenario import Settings
from sims.scenario.layers_by_name import with_ranges
from sims.simulation.setup import SimulationSetup

SMALL = {"channels": 1, "size": 8, "classes": 3}
RESNET = build("resnet", widths=[4, 8], adapters=True, **SMALL)
BASE = """
seed = 3
rounds = 2
[data]
kind = "digits"
[partition]
clients = 4
[model]
kind = "mlp"
hidden = [5]
[training]
rate = 0.2
steps = 2
batch = 8
[algorithm]
name = "fedalt"
clip = 10.0
personal_part = "output"
[evaluation]
what = "personal"
"""


def chosen(text: str, module: Any = RESNET, kind: str = "resnet") -> set[str]:
    """The names of the parameters that a text means."""
    ranges = with_ranges(find("fedalt"), {"personal_part": text}, kind, module)["personal_part"]
    slots = parameter_slices(module)
    mask = IndexRanges.parse(ranges, slots[-1].stop).mask()
    parts = {slot.name: mask[slot.start : slot.stop] for slot in slots}
    assert all(part.min() == part.max() for part in parts.values())
    return {name for name, part in parts.items() if part.all()}


def test_names_of_layers_are_what_the_paper_makes_personal() -> None:
    assert chosen("output") == {"output.weight", "output.bias"}
    assert chosen("input") == {"input.conv.weight", "input.norm.weight", "input.norm.bias"}
    adapter = chosen("adapter")
    assert {name for name in adapter if "adapter" not in name and "norm" not in name} == set()
    assert "blocks.0.adapter1.conv.weight" in adapter
    assert "blocks.1.norm2.bias" in adapter
    assert not any("skip" in name for name in adapter)


def test_patterns_ranges_and_several_of_them_can_be_mixed() -> None:
    first = parameter_slices(RESNET)[0]
    assert chosen(f"output.b*, 0:{first.stop}") == {"output.bias", first.name}
    assert chosen("input, output") == chosen("input") | chosen("output")
    assert chosen("") == set()


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("mlp", "adapter", "personal_part: mlp has no layer 'adapter': there are input, output"),
        ("mlp", "dense9.*", "personal_part: pattern 'dense9.*' matches none of input.weight"),
        ("mlp", "9000:9001", "personal_part: of 358 parameters, 9000:9001 has none"),
        (
            "resnet",
            "adapter",
            "this resnet has nothing that belongs to 'adapter' (adapters = true in [model]",
        ),
    ],
)
def test_a_model_without_such_a_layer_is_told_of(kind: str, text: str, said: str) -> None:
    if kind == "mlp":
        module = build("mlp", features=64, classes=3, hidden=[5])
        said = said.replace("358", str(parameter_slices(module)[-1].stop))
    else:
        module = build("resnet", widths=[4], **SMALL)
    with pytest.raises(ParameterError) as caught:
        chosen(text, module, kind)
    assert said in str(caught.value)


def test_without_a_model_names_are_checked_and_some_range_stands_for_them() -> None:
    entry = find("fedsim")
    assert with_ranges(entry, {"personal_part": "output"}, "cnn_mnist", None) == {"personal_part": "0:1"}
    with pytest.raises(ParameterError, match="has no layer 'adapter'"):
        with_ranges(entry, {"personal_part": "adapter"}, "cnn_mnist", None)
    assert with_ranges(find("fedavg"), {"clip": 1.0}, "mlp", None) == {"clip": 1.0}


# --- in a scenario ---


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(BASE)


def simulate(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    status = main(["simulate", "mine.toml", "--out", "out", *options])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "algorithm.personal_part=adapter",
            "algorithm.personal_part: fedalt: personal_part: mlp has no layer",
        ),
        ("algorithm.personal_part=*", "algorithm.personal_part: fedalt: personal_part has all parameters"),
        ("algorithm.personal_part=3", "algorithm.personal_part: fedalt: personal_part must be a text"),
        (
            "model.start=nowhere",
            "model.start: there is no nowhere/model.npz: run the scenario that leaves it",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    change: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = simulate(capsys, "--set", change)
    assert status == 2
    assert said in err
    assert not Path("out").exists()


def test_a_run_begins_with_the_model_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Shared parameters and every client's own: a client that never takes part has all of it."""
    assert simulate(capsys, "--set", "name=first", "--set", "algorithm.name=fedsim")[0] == 0
    before = np.load("out/first/model.npz")["model"]
    settings = Settings.model_validate(_document(start="out/first/model.npz"))
    setup = SimulationSetup.of(settings, Path())
    np.testing.assert_array_equal(setup.run.model, before)
    memory = setup.algorithm.first_memory()
    np.testing.assert_array_equal(setup.algorithm.personal(memory, setup.run.model, setup.crowd[0]), before)


def _document(*, start: str) -> dict[str, Any]:
    document = tomllib.loads(BASE)
    document["model"]["start"] = start
    return document


def test_the_seed_may_be_in_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "name=first", "--set", "sweep.seed=[3,4]"]
    assert simulate(capsys, *options)[0] == 0
    options = ["--set", "model.start=out/first/seed={seed}", "--set", "sweep.seed=[3,4]", "--json"]
    status, out, _ = simulate(capsys, *options)
    assert status == 0
    assert len(json.loads(out)["cells"]) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"nothing", "does not hold the model of a run"), (None, "but this model has 385, all finite")],
)
def test_files_that_are_no_such_model(
    content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.npz").write_bytes(content or b"")
    if content is None:
        np.savez("model.npz", model=np.zeros(7))
    status, _, err = simulate(capsys, "--set", "model.start=.")
    assert status == 2
    assert ": model.start: " in err
    assert said in err
