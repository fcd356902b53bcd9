"""The panel on privacy: one epsilon, what it means, and who could know what; the same as in an audit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.rfa import RFA
from sims.audit.audit_result import Audit
from sims.audit.audit_run import audit_run
from sims.audit.guarantee_text import (
    SCALE,
    Strength,
    effective_epsilon,
    exposed,
    guess_at_most,
    guess_text,
    headline,
    knowledge,
    odds,
    unprotected,
)
from sims.audit.recorded_noise import recorded_noise
from sims.cli.audit_text import lines
from sims.glossary import GLOSSARY
from sims.plan.signal_and_noise import signal_and_noise
from sims.report import page
from sims.report.headline import figures
from tests.sims.audit_run import DIM, make_run, noisy
from tests.sims.report_runs import reported_run

DOCS = Path(__file__).resolve().parents[2] / "docs"


class Page(HTMLParser):
    """The ids, classes and links of a page, and the text in each element of a class."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.classes: list[str] = []
        self.terms: list[str] = []
        self.current: list[str] = []
        self.texts: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        own = (found.get("class") or "").split()
        self.ids += [found["id"] or ""] if "id" in found else []
        self.classes += own
        if "term" in own:
            self.terms.append((found.get("href") or "").removeprefix("#"))
        if found.get("aria-current"):
            self.current.append(" ".join(own))
        if tag not in ("meta", "br", "hr", "circle", "path", "rect"):
            self._open.append(" ".join(own))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)  # a shape of SVG, which has no end

    def handle_endtag(self, _tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for name in self._open:
            self.texts[name] = self.texts.get(name, "") + data


def with_epsilon(epsilon: float | None, **subject: Any) -> Audit:
    run = reported_run(noise=epsilon is not None)
    audit = run.audit
    return replace(
        audit,
        subject=replace(audit.subject, **{"insecure_seed": None, **subject}),
        guarantee=replace(audit.guarantee, epsilon=epsilon),
    )


def shown(audit: Audit) -> Page:
    return Page(page([replace(reported_run(), audit=audit)]))


# --- the figures ---


@given(st.floats(0.0, 30.0), st.floats(0.01, 0.99))
def test_a_guess_is_limited_by_the_odds(epsilon: float, prior: float) -> None:
    """Bayes' rule with a likelihood ratio of e^epsilon, written the other way round."""
    after = guess_at_most(epsilon, prior)
    assert after / (1 - after) == pytest.approx(math.exp(epsilon) * prior / (1 - prior), rel=1e-3)
    assert guess_at_most(0.0, prior) == pytest.approx(prior)


@given(st.floats(0.0, 200.0))
def test_the_percentage_is_never_less_than_the_bound_and_never_certain(epsilon: float) -> None:
    number = re.search(r"[\d.]+", guess_text(epsilon))
    if number is None:
        assert guess_at_most(epsilon) > 0.99999
        return
    assert guess_at_most(epsilon) * 100 <= float(number[0]) + 1e-9
    assert float(number[0]) < 100


@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_a_larger_epsilon_is_never_called_stronger(one: float, other: float) -> None:
    order = [strength for strength, _ in SCALE]
    small, large = sorted((one, other))
    assert order.index(Strength.of(small)) <= order.index(Strength.of(large))
    assert Strength.of(None) is Strength.NONE
    assert Strength.of(8.0) is Strength.WEAK


# --- one answer ---


@pytest.mark.parametrize("epsilon", [0.05, 0.9, 2.0, 8.0, 20.0, None])
def test_the_page_has_one_answer(epsilon: float | None) -> None:
    audit = with_epsilon(epsilon)
    found, strength = shown(audit), Strength.of(epsilon)
    css = strength.name.lower().replace("_", "-")
    assert found.ids.count("privacy") == found.classes.count("panel") == 1
    assert f"panel {css}" in found.texts
    assert found.current == ["current"]
    assert found.texts["current"].lower().startswith(strength.value)
    assert {"answer learned", "answer protected", "answer strength", "answer covers"} <= found.texts.keys()
    assert "answer unprotected" in found.texts
    (card,) = [each for each in figures([replace(reported_run(), audit=audit)]) if each.name == "Epsilon"]
    assert card.value == ("none" if epsilon is None else f"{epsilon:g}")


@pytest.mark.parametrize("changes", [{"channel": "plain"}, {"insecure_seed": "ab" * 32}])
def test_noise_that_hides_nothing_from_the_server_is_no_protection(changes: dict[str, Any]) -> None:
    audit = with_epsilon(0.5, **changes)
    assert exposed(audit)
    assert effective_epsilon(audit) is None
    assert "panel none" in shown(audit).texts
    (card,) = [each for each in figures([replace(reported_run(), audit=audit)]) if each.name == "Epsilon"]
    assert card.value == "none"
    assert headline(audit) != headline(with_epsilon(0.5))
    assert odds(audit) != odds(with_epsilon(0.5))


def test_each_party_has_a_row() -> None:
    parties = [each.key for each in knowledge(with_epsilon(2.0))]
    assert parties == ["server", "clients", "model", "outsider", "colluding"]
    found = shown(with_epsilon(2.0))
    assert [name for name in found.classes if name.startswith("who-")] == [f"who-{key}" for key in parties]


def test_colluding_clients_are_those_that_were_planned_for(tmp_path: Path) -> None:
    private = audit_run(make_run(tmp_path / "private", noisy(5)))
    assert private.subject.colluders == 0
    rows = [knowledge(with_epsilon(2.0, colluders=count))[-1] for count in (0, 3)]
    assert rows[0] != rows[1]
    assert "3 clients" in rows[1].protection


def test_what_does_not_hold_is_said_first() -> None:
    audit = with_epsilon(2.0)
    broken = replace(audit, integrity=replace(audit.integrity, problems=("a row is missing",)))
    assert len(unprotected(broken)) == len(unprotected(audit)) + 1
    assert unprotected(broken)[1:] == unprotected(audit)


def test_several_runs_have_a_panel_each() -> None:
    found = Page(page([reported_run("one"), reported_run("two", noise=True)]))
    assert found.classes.count("panel") == 2
    assert found.ids.count("privacy") == 1


def test_the_audit_says_it_in_the_same_words(tmp_path: Path) -> None:
    audit = audit_run(make_run(tmp_path / "private", noisy(5)))
    text = "\n".join(lines(audit))
    for sentence in (headline(audit), odds(audit), *unprotected(audit)):
        assert sentence in text
    assert all(each.knows in text and each.protection in text for each in knowledge(audit))


# --- the glossary ---


@pytest.mark.parametrize("epsilon", [2.0, None])
def test_every_term_that_is_linked_is_explained_once(epsilon: float | None) -> None:
    found = shown(with_epsilon(epsilon, colluders=2))
    assert len(found.ids) == len(set(found.ids))
    assert set(found.terms) <= set(found.ids)
    assert len(found.terms) == len(set(found.terms))
    assert {"term-epsilon", "term-client", "term-server", "term-total"} <= set(found.terms)
    assert {f"term-{each.key}" for each in GLOSSARY} <= set(found.ids)


def test_no_word_has_two_meanings() -> None:
    words = [word for term in GLOSSARY for word in (term.name, *term.others)]
    assert len(words) == len(set(words))


def test_the_document_has_every_term() -> None:
    table = (DOCS / "glossary.md").read_text(encoding="utf-8").split("\n\n")[2]
    rows = [tuple(line.strip("| ").split(" | ")) for line in table.splitlines()[2:]]
    assert rows == [(term.name, term.meaning) for term in GLOSSARY]


# --- the noise of a run that is over ---


def test_recorded_noise_is_that_of_the_plan(tmp_path: Path) -> None:
    algorithm = noisy(5)
    planned, audit = signal_and_noise(algorithm), audit_run(make_run(tmp_path / "private", algorithm))
    recorded = recorded_noise(audit)
    assert planned is not None
    assert recorded is not None
    for one, other in zip(planned.vectors, recorded.vectors, strict=True):
        assert (one.kind, one.part, one.size, one.limit) == (other.kind, other.part, other.size, other.limit)
        assert other.noise == pytest.approx(one.noise, rel=0.3)  # drop-outs make the mean noisier
    bare = audit_run(make_run(tmp_path / "bare", RFA(dim=DIM, clients=5, weighted=False)))
    assert recorded_noise(bare) is None
