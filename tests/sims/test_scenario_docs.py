"""The page on scenarios has every key with its default, and every shipped example."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from sims.scenario import Settings
from sims.scenario.settings import OBSERVER_KINDS, RaySection
from sims.scenario.shipped import all_described
from sims.simulation import OBSERVERS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
BESIDE = {"name"}  # of the file
REQUIRED = "required"


def told(title: str) -> dict[str, str]:
    """The keys of a table on the page, and their defaults."""
    section = PAGE.split(f"\n### {title}\n", 1)[1].split("\n### ", 1)[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.MULTILINE))


def section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = (annotation, *get_args(annotation))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)), None)


def default_of(model: type[BaseModel], name: str) -> Any:
    field = model.model_fields[name]
    if field.is_required():
        return REQUIRED
    return field.default.model_dump() if isinstance(field.default, BaseModel) else field.default


def read(text: str) -> Any:
    """A default as the page writes it: in TOML, but for none and for what must be set."""
    if text in ("none", REQUIRED):
        return None if text == "none" else REQUIRED
    return tomllib.loads(f"x = {text}")["x"]


def check(title: str, model: type[BaseModel], names: set[str]) -> None:
    found = told(title)
    assert found.keys() - (BESIDE if model is Settings else set()) == names, title
    for name in names:
        expected = default_of(model, name)
        value = read(found[name])
        assert (type(value), value) == (type(expected), expected), f"{title} {name}"


def test_every_key_is_there_with_its_default() -> None:
    sections = {name: section_of(field.annotation) for name, field in Settings.model_fields.items()}
    check("top level", Settings, {name for name, section in sections.items() if section is None})
    for name, section in sections.items():
        if section is not None:
            check(f"[{name}]", section, set(section.model_fields))
    check("[channel.ray]", RaySection, set(RaySection.model_fields))


def test_no_table_is_there_that_does_not_exist() -> None:
    titles = set(re.findall(r"^### \[(\w+)\]$", PAGE, re.MULTILINE))
    assert titles == {name for name, field in Settings.model_fields.items() if section_of(field.annotation)}


def test_every_example_is_there() -> None:
    section = PAGE.split("\n## The shipped ones\n", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)
    assert sorted(listed) == [each.name for each in all_described() if not each.table]


def test_every_observer_is_there() -> None:
    (line,) = (each for each in PAGE.splitlines() if each.startswith("| `observe` |"))
    assert re.findall(r"[\w-]+", line.partition("observations: ")[2]) == sorted(OBSERVERS)


def test_scenarios_know_every_observer() -> None:
    assert OBSERVER_KINDS.keys() == OBSERVERS.keys()
