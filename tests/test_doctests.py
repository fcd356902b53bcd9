"""The public names are explained where they are defined, and the examples there are right."""

from __future__ import annotations

import ast
import doctest
import inspect
import io
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any, ClassVar, Final

import numpy as np
import pytest
import trio

import protocols.algorithm
import protocols.learner
import protocols.participant
import protocols.rounds
import protocols.run
import protocols.serialisation
import secagg
import secagg.net
import sims.runtime

# What whoever writes an algorithm, a learner or a runner needs; the others say themselves what they export.
PROTOCOLS: Final = {
    protocols.algorithm: ("Algorithm", "ClientRound", "ModelState", "NoMemory", "Sum"),
    protocols.learner: ("Learner", "Score", "Steering"),
    protocols.participant: ("Participant",),
    protocols.serialisation: ("as_vector", "pack", "unpack"),
    protocols.run: ("RoundReport", "Run", "SumChannel"),
    protocols.rounds: ("Outcome", "Query", "RoundInfo", "run_round"),
}
# Shapes of arguments, and what other names return or make: their examples are there.
ELSEWHERE: Final = frozenset(
    {
        *("Answer", "Memory", "Plan", "Preflight"),
        *("Client", "Server", "Session", "open_client", "serve_sums"),
        *("BlockingClient", "BlockingServer", "BlockingSession", "connect"),
        *("SumChannel", "ClientRound", "Learner", "ModelState", "NoMemory", "Participant", "Score"),
        *(
            "DropoutSchedule",
            "Tamper",
            "Log",
            "DropoutLaw",
            "ObservedChannel",
            "SessionChannel",
            "no_dropouts",
        ),
    }
)
ALIASES: Final = frozenset({"DropoutSchedule", "Tamper"})  # of types, which have no docstring
_SPEAKS_FOR_ITSELF: Final = 6  # lines
FLAGS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FAMILIAR: Final = {
    **{name: getattr(secagg, name) for name in secagg.__all__},
    "np": np,
    "trio": trio,
    "Fraction": Fraction,
    "dataclass": dataclass,
    "ClassVar": ClassVar,
    "Vector": protocols.serialisation.Vector,
}


def public() -> Iterator[tuple[ModuleType, str]]:
    for module in (secagg, secagg.net, sims.runtime):
        yield from ((module, name) for name in module.__all__)
    for module, names in PROTOCOLS.items():
        yield from ((module, name) for name in names)


NAMES: Final = tuple(public())
IDS: Final = [f"{module.__name__}.{name}" for module, name in NAMES]


def found(module: ModuleType, name: str) -> Any:
    thing = getattr(module, name)
    return inspect.unwrap(thing) if callable(thing) else thing


def docs_of(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_examples_are_right(module: ModuleType, name: str) -> None:
    known = {**FAMILIAR, **vars(module)}
    test = doctest.DocTestParser().get_doctest(docs_of(found(module, name)), known, name, None, 0)
    told = io.StringIO()
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.write)
    assert told.getvalue() == ""


def test_a_wrong_example_is_noticed() -> None:
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test, out=lambda _: None).failed == 1


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_every_name_is_explained(module: ModuleType, name: str) -> None:
    if name in ALIASES:
        return
    text = docs_of(found(module, name))
    assert text
    assert not text.startswith(f"{name}("), "that is what a dataclass says of itself"
    if name not in ELSEWHERE:
        assert ">>>" in text, "show what it gives"
    if raises(found(module, name)):
        assert "aise" in text, "say what it raises, and when"


def raises(thing: Any) -> bool:
    """Whether it raises something itself when it is called."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    if isinstance(tree, ast.ClassDef):
        makers = [
            each
            for each in tree.body
            if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__post_init__")
        ]
        return any(isinstance(node, ast.Raise) for each in makers for node in ast.walk(each))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def test_what_raises_is_known() -> None:
    assert raises(secagg.Policy)
    assert raises(secagg.sum_securely)
    assert not raises(secagg.VolatileMemory)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_methods_of_public_classes_are_explained(module: ModuleType, name: str) -> None:
    """Those that are longer than a few lines; the name of a short one may speak for itself."""
    thing = found(module, name)
    if not inspect.isclass(thing):
        return
    silent = [
        key
        for key, each in vars(thing).items()
        if not key.startswith("_")
        and inspect.isfunction(each)
        and not docs_of(each)
        and len(inspect.getsource(each).splitlines()) > _SPEAKS_FOR_ITSELF
    ]
    assert silent == []
