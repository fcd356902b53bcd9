"""Builds the panel for people who answer for privacy, and the glossary: one epsilon, and what it means.

Its sentences are those of `secagg audit` (`sims.audit.guarantee_text`). The first technical terms of each
kind in a panel are links to the glossary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from sims.audit.audit_result import Audit
from sims.audit.guarantee_text import (
    SCALE,
    Knowledge,
    Strength,
    covered,
    effective_epsilon,
    guess_at_most,
    guess_text,
    headline,
    knowledge,
    learned,
    odds,
    protected,
    unprotected,
)
from sims.audit.recorded_noise import recorded_noise
from sims.glossary import GLOSSARY
from sims.plan.signal_and_noise import verdict
from sims.report.html_elements import Child, Markup, boxed, element, joined
from sims.report.reported_run import ReportedRun
from sims.text_format import sentence_of

_WORDS: Final = {word: term.key for term in GLOSSARY for word in (term.name, *term.others)}
_PATTERN: Final = re.compile(
    r"\b(" + "|".join(sorted(map(re.escape, _WORDS), key=len, reverse=True)) + r")\b", re.IGNORECASE
)


def anchor(key: str) -> str:
    """Return the id of a term's entry in the glossary."""
    return f"term-{key}"


class _Linker:
    """Turns technical terms into links to the glossary: each term once in a panel, where it comes first."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, text: str) -> Markup:
        return self.plain(sentence_of(text))

    def plain(self, text: str) -> Markup:
        """Return the text with links, without making a sentence of it."""
        return joined(self._pieces(text))

    def _pieces(self, text: str) -> Iterator[Child]:
        end = 0
        for match in _PATTERN.finditer(text):
            key = _WORDS[match[0].lower()]
            if key not in self._seen:
                self._seen.add(key)
                yield text[end : match.start()]
                yield element("a", match[0], href=f"#{anchor(key)}", class_="term")
                end = match.end()
        yield text[end:]


def panels(runs: Sequence[ReportedRun]) -> Iterator[Markup]:
    """Yield the panel of each run; of several runs, each can be unfolded."""
    if len(runs) == 1:
        yield _panel(runs[0].audit)
        return
    for run in runs:
        yield element(
            "details",
            element("summary", element("h3", f"{run.title}: {headline(run.audit)}")),
            _panel(run.audit),
            class_="run",
        )


def _panel(audit: Audit) -> Markup:
    link, epsilon = _Linker(), effective_epsilon(audit)
    strength = Strength.of(epsilon)
    return element(
        "div",
        element("p", link(headline(audit)), class_="verdict"),
        element(
            "dl",
            _answer("learned", "What did the server learn?", link(learned(audit))),
            _answer("protected", "Who is protected, and against whom?", link(protected(audit))),
            _answer("strength", "How strongly?", link(odds(audit)), _scale(epsilon)),
            _answer("covers", "What does that cover?", link(covered(audit))),
            _answer("unprotected", "What is not protected?", _list(map(link, unprotected(audit)))),
            *_cost(audit, link),
            class_="answers",
        ),
        _who(knowledge(audit), link),
        class_=f"panel {strength.name.lower().replace('_', '-')}",
    )


def _answer(key: str, question: str, *answer: Child) -> Markup:
    return element("div", element("dt", question), element("dd", *answer), class_=f"answer {key}")


def _cost(audit: Audit, link: _Linker) -> Iterator[Markup]:
    found = recorded_noise(audit)
    if found is not None:
        yield _answer("cost", "Could it learn with so much noise?", link(verdict(found)))


def _list(entries: Iterator[Markup]) -> Markup:
    return element("ul", (element("li", each) for each in entries))


# --- the scale ---


def _scale(epsilon: float | None) -> Markup:
    """Return the scale of words, with the odds of each, in which the word for `epsilon` is marked."""
    own = Strength.of(epsilon)
    least = 0.0
    rows = []
    for strength, most in SCALE:
        rows.append(_step(strength, least, most, current=strength is own))
        least = most
    rows.append(_step(Strength.NONE, None, None, current=own is Strength.NONE))
    return element("ol", rows, class_="scale", aria_label="From the strongest to the weakest protection")


def _step(strength: Strength, least: float | None, most: float | None, *, current: bool) -> Markup:
    if most is None or least is None:
        epsilons, guess, filled = "no epsilon", "any guess may become certain", 10
    elif math.isinf(most):
        epsilons, guess = f"above {least:g}", f"a guess can be right in {guess_text(most)}"
        filled = 10
    else:
        epsilons, guess = f"up to {most:g}", f"a guess can be right in {guess_text(most)}"
        filled = round(10 * (2 * guess_at_most(most) - 1))
    return element(
        "li",
        element("strong", strength.value.capitalize()),
        element("span", epsilons, class_="epsilons"),
        element("span", class_=f"meter of-{filled}", aria_hidden="true"),
        element("span", guess, class_="guess"),
        class_="current" if current else None,
        aria_current="true" if current else None,
    )


# --- who could know what ---


def _who(rows: Sequence[Knowledge], link: _Linker) -> Markup:
    caption = "Who could know what about one client"
    heads = ("Who", "Could know", "Protection")
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", (element("th", head, scope="col") for head in heads))),
        element(
            "tbody",
            (
                element(
                    "tr",
                    element("th", link.plain(f"{each.party[:1].upper()}{each.party[1:]}"), scope="row"),
                    element("td", link(each.knows)),
                    element("td", link(each.protection)),
                    class_=f"who-{each.key}",
                )
                for each in rows
            ),
        ),
        class_="who",
    )
    return boxed(table, caption)


def glossary() -> Markup:
    """Return all terms with their meanings, as a list of definitions."""
    entries = (
        element("div", element("dt", each.name, id=anchor(each.key)), element("dd", each.meaning))
        for each in GLOSSARY
    )
    return element("dl", entries, class_="glossary")
