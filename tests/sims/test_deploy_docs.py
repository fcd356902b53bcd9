"""docs/deployment.md: what it tells a newcomer to do works, and its configurations are complete."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from sims.deploy.config import ConfigSection, JoinConfig, ServeConfig, load
from sims.deploy.sum_specs_file import SumsFile, read_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:^`([\w.-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# The shell's own commands, but with this Python's packages.
PRELUDE = """
set -e
secagg() { "$THIS_PYTHON" -c 'import sys; from sims.cli import main; sys.exit(main())' "$@"; }
python() { "$THIS_PYTHON" "$@"; }
"""


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def named_file(name: str) -> str:
    found: str = next(text for title, _, text in BLOCK.findall(PAGE) if title == name)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.slow
def test_the_first_five_minutes(tmp_path: Path) -> None:
    """Every block in order: files are written, commands are run, and the last prints what the page shows."""
    port, printed = free_port(), ""
    environment = {**os.environ, "THIS_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    for name, language, text in BLOCK.findall(section("1 Five minutes")):
        if name:
            (tmp_path / name).write_text(text.replace("127.0.0.1:7443", f"127.0.0.1:{port}"))
            continue
        assert language == "sh"
        ended = subprocess.run(
            ["bash", "-c", PRELUDE + text],  # noqa: S607  (whichever bash there is)
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), text
        printed = ended.stdout

    (shown,) = re.findall(r"^    (.*)$", section("1 Five minutes"), re.MULTILINE)
    assert printed == f"{shown}\n"


def test_the_example_of_the_library_runs() -> None:
    code = next(
        text for _, language, text in BLOCK.findall(section("10 As a library")) if language == "python"
    )
    names: dict[str, object] = {"__name__": "__example__"}

    exec(compile(code, "docs/deployment.md", "exec"), names)  # noqa: S102  (the repository's own text)

    totals = names["totals"]
    assert isinstance(totals, list)
    assert [total["x"].round(3).tolist() for total in totals] == [[6.0, 48.0]] * 2


# --- the reference ---


def unset(model: BaseModel, place: str) -> list[str]:
    """Keys that a configuration leaves out, at any depth."""
    absent = [f"{place}{name}" for name in type(model).model_fields if name not in model.model_fields_set]
    for name in model.model_fields_set:
        value = getattr(model, name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, BaseModel):
                absent += unset(each, f"{place}{name}.")
    return absent


# Keys that exclude others: a function in place of a file, and those of training.
OF_TRAINING = [
    "client.scenario",
    *(
        f"input.{key}"
        for key in ("answer", "share", "data", "learner", "arguments", "state", "model", "personal")
    ),
]


@pytest.mark.parametrize(
    ("name", "model", "absent"),
    [
        ("serve-all.toml", ServeConfig, []),
        ("join-all.toml", JoinConfig, OF_TRAINING),
        ("sums-all.toml", SumsFile, []),
    ],
)
def test_the_page_shows_every_key(
    tmp_path: Path, name: str, model: type[ConfigSection], absent: list[str]
) -> None:
    path = tmp_path / name
    path.write_text(named_file(name))

    assert sorted(unset(load(path, model), "")) == sorted(absent)


@pytest.mark.parametrize(("name", "model"), [("serve-all.toml", ServeConfig), ("join-all.toml", JoinConfig)])
def test_keys_that_may_be_left_out_are_marked(tmp_path: Path, name: str, model: type[ConfigSection]) -> None:
    lines = named_file(name).splitlines()
    optional = [line for line in lines if re.search(r"# default\b", line)]
    assert len(optional) >= 3
    path = tmp_path / name
    path.write_text("\n".join(line for line in lines if line not in optional))

    load(path, model)


def test_the_table_of_the_reference_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "sums.toml"
    path.write_text(named_file("sums-all.toml"))

    table = read_table(path)
    table.check_fits(100)
    table.check_colluders(2)


def test_events_of_the_library_are_explained() -> None:
    """By the texts under which they are logged."""
    logged = set(re.findall(r'(?:LogLine|\.write)\(\s*"([^"]+)"', _sources()))
    assert {"gave up", "session lost", "excluded", "missing", "abandoned"} <= logged
    explained = set(re.findall(r"`([a-z ]+)`", section("8 The log")))
    assert logged - explained == set()


def _sources() -> str:
    folders = (ROOT / "secagg" / "net", ROOT / "sims" / "deploy")
    return "\n".join(path.read_text(encoding="utf-8") for each in folders for path in each.glob("*.py"))


def test_links_lead_somewhere() -> None:
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", PAGE)]
    assert targets
    assert [name for name in targets if not (ROOT / "docs" / name).exists()] == []
