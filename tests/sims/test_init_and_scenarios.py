"""`secagg init` writes what runs and has every key; `secagg scenarios` lists and prints what is shipped."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from protocols.catalogue import CATALOGUE
from sims.cli import _parser, commands, main
from sims.scenario import Settings, load
from sims.scenario.shipped import find, names
from sims.scenario.template import written

SCENARIOS = Path(__file__).resolve().parents[2] / "sims" / "scenarios"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- init ---


def test_it_writes_what_runs_and_never_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine"]) == 0
    assert capsys.readouterr().out == "mine.toml is written: secagg simulate mine.toml runs it\n"
    settings = load(Path("mine.toml")).variants[0].settings
    assert (settings.channel.kind, settings.algorithm.name) == ("secure", "fedavg")
    assert main(["simulate", "mine.toml", "--quick", "--set", "output.keep=table"]) == 0
    assert "rounds 2 of 2" in capsys.readouterr().out
    before = Path("mine.toml").read_text()
    assert main(["init", "mine.toml", "--algorithm", "rfa"]) == 2
    assert capsys.readouterr().err == (
        "secagg init: mine.toml exists, and is left as it is: take another name\n"
    )
    assert Path("mine.toml").read_text() == before


def test_what_it_cannot_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", "--algorithm", "rfaa"]) == 2
    assert "secagg init: --algorithm: there is no algorithm 'rfaa': did you mean" in capsys.readouterr().err
    assert not Path("mine.toml").exists()
    assert main(["init", "nowhere/mine"]) == 2
    assert "secagg init: nowhere/mine.toml cannot be written: " in capsys.readouterr().err
    assert main(["init", "mine", "--channel", "postal"]) == 2


def test_a_rate_is_left_out_only_where_that_of_training_takes_its_place() -> None:
    assert main(["init", "one", "--algorithm", "fedpi"]) == main(["init", "two", "--algorithm", "qffl"]) == 0
    tables = (
        Path(name).read_text().split("[algorithm]")[1].split("\n\n")[0] for name in ("one.toml", "two.toml")
    )
    assert [bool(re.search(r"^# rate: learning rate of local steps", each, re.M)) for each in tables] == [
        True,
        False,
    ]


def test_models_of_clients_own_are_measured_beside_the_common_one() -> None:
    found = {
        name: tomllib.loads(written("mine", algorithm=name))["evaluation"]["what"]
        for name in ("fedavg", "fedadam", "fedpi", "fedalt", "lg-fedavg", "lp-proj-1", "rsa", "local")
    }
    assert found == dict.fromkeys(("fedavg", "fedadam", "fedpi"), "common") | {"local": "personal"} | (
        dict.fromkeys(("fedalt", "lg-fedavg", "lp-proj-1", "rsa"), "both")
    )


def test_what_it_writes_of_a_strong_pull_does_not_diverge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine", "--algorithm", "lp-proj-2", "--channel", "plain"]) == 0
    assert main(["simulate", "mine.toml", "--quick", "--set", "output.keep=table"]) == 0
    assert "rounds 2 of 2" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_what_is_no_name_is_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", name]) == 2
    assert "is no name of a file: take one such as mine" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", CATALOGUE)
def test_all_that_is_left_out_can_be_taken_in(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keygen", "server"]) == 0
    text = written("mine", algorithm=algorithm, channel="processes")
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load(path).variants[0].settings.channel.kind == "processes"
    path.write_text(re.sub(r'^#(?=[\["a-z])', "", text, flags=re.MULTILINE))
    found = load(path).variants
    assert len(found) == 2
    settings = found[0].settings
    assert (settings.privacy is None) == (CATALOGUE[algorithm].budget is None)
    assert settings.tail is not None
    assert settings.attack is not None
    assert settings.dropout.happens


def test_it_has_every_key() -> None:
    text = written("mine")
    whole = tomllib.loads(re.sub(r'^#(?=[\["a-z])', "", text, flags=re.MULTILINE))
    missing = [
        f"{table}.{key}"
        for table, field in Settings.model_fields.items()
        for section in (field.annotation, *get_args(field.annotation))
        if isinstance(section, type) and issubclass(section, BaseModel)
        for key in section.model_fields
        if key not in whole.get(table, {})
    ]
    # Of these, another one is set, which excludes them.
    assert missing == ["training.steps", "privacy.rho"]
    assert set(whole) == {*Settings.model_fields, "name", "sweep", "quick"}
    assert "or: steps = " in text
    assert "or: rho = " in text


# --- scenarios ---


def test_all_are_listed_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(";")[0] for line in lines) == list(names())
    by_name = {line.partition(";")[0]: line for line in lines}
    assert by_name["digits"].startswith("digits; 3 cells; secure; needs no files; Federated averaging on ")


def test_the_number_of_cells_is_that_of_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["scenarios"]
    assert [each["table"] for each in listed] == sorted(each["table"] for each in listed)  # examples first
    for each in listed:
        found = load(SCENARIOS / f"{each['name']}.toml", check=lambda _settings, _problems: None)
        assert each["cells"] == len(found.variants), each["name"]
        assert each["purpose"].endswith(".")
        assert len(each["purpose"]) > 20


def test_one_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (SCENARIOS / "digits.toml").read_text()
    for name in ("digits", "digits.toml"):
        assert main(["scenarios", name]) == 0
        assert capsys.readouterr().out == text
    assert main(["scenarios", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == text
    assert main(["scenarios", "digit"]) == 2
    assert capsys.readouterr().err == (
        "secagg scenarios: there is no file digit, nor a shipped scenario of that name; did you mean "
        "digits?\n"
    )


def test_a_file_of_that_name_comes_first(tmp_path: Path) -> None:
    assert find("digits") == SCENARIOS / "digits.toml"
    own = tmp_path / "digits.toml"
    own.write_text("")
    assert find("digits.toml") == Path("digits.toml")
    assert find("digits") == SCENARIOS / "digits.toml"
    assert find("elsewhere/digits.toml") == Path("elsewhere/digits.toml")


def test_simulate_takes_a_shipped_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "quikstart"]) == 2
    assert "did you mean quickstart?" in capsys.readouterr().err


def test_a_missing_directory_of_data_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).resolve().parents[2] / "papers" / "scenarios" / "rfa-mnist.toml"
    assert main(["simulate", str(path), "--quick"]) == 2
    err = capsys.readouterr().err
    assert "rfa-mnist.toml: data: mnist is not a directory: mnist.npz is read from it" in err
    assert err.endswith("Say with --data where directories of data are\n")


# --- the help ---


def test_the_help_groups_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = _parser().format_help()
    blocks = {
        title: re.findall(r"^    ([\w-]+) ", block, re.MULTILINE)
        for title, block in re.findall(r"^(run|plan|deploy|check|more):\n((?:    .*\n)+)", text, re.MULTILINE)
    }
    listed = {name for group in blocks.values() for name in group}
    assert list(blocks) == ["run", "plan", "deploy", "check"]
    for title, group in commands.GROUPS.items():
        assert blocks[title] == [name for name in group if name in listed]
    assert listed == set(commands.COMMANDS)
    assert text.startswith("usage: secagg [-h] [--version] COMMAND ...")
