"""Finds the guards of ``secagg``, and removes one of them from a source.

A guard is one of these:

* a ``raise`` of an error that says a peer misbehaved, a policy was broken, a sum failed, or evidence proves
  nothing;
* a statement that calls a check, which raises such an error, if the check is called in several places: then
  each place is a guard of its own;
* each condition of ``if this or that: raise ...``;
* whatever else `mutant_conditions` lists: a check that does not raise, but convicts or excludes a client.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutant_conditions import CHANGES, Change
from secagg import errors

_CHECKS = ("check", "verify", "need")  # how the names of checks begin


@dataclass(frozen=True)
class Guard:
    """A part of a source, and what removes the guard in its place. Columns count bytes, as in ``ast``."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    instead: str = "pass"

    def __str__(self) -> str:
        shown = f"{self.path}:{self.line}: {self.text}"
        return shown if self.instead == "pass" else f"{shown}  ->  {self.instead}"


def guard_classes() -> frozenset[str]:
    """Return the names of the error classes whose raising is a guard."""
    roots = (errors.PeerError, errors.PolicyError, errors.SumFailed, errors.Unproven)
    return frozenset(
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, roots)
    )


def guarded_sources(root: Path) -> dict[str, str]:
    """Return the sources to find guards in, by their path below ``root``."""
    paths = sorted((root / "secagg").rglob("*.py"))
    names = {path: path.relative_to(root).as_posix() for path in paths}
    return {
        name: path.read_text(encoding="utf-8")
        for path, name in names.items()
        if not name.startswith("secagg/testing/")
    }


def find_guards(
    sources: Mapping[str, str], classes: frozenset[str], changes: Iterable[Change] = CHANGES
) -> list[Guard]:
    """Return every guard of ``sources`` (texts by path), in the order of the sources. ``changes`` in paths
    that are not among them do not count."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    names = _names_of_errors(list(trees.values()), classes)
    repeated = _called_in_several_places(list(trees.values()), names)
    found = []
    for path, tree in trees.items():
        nodes = [*_raises(tree, names), *_calls(tree, repeated)]
        here = [_guard(path, sources[path], node) for node in nodes]
        here += [_guard(path, sources[path], node, "False") for node in _conditions(tree, names)]
        here += [_changed(change, sources[path]) for change in changes if change.path == path]
        found += sorted(here, key=lambda guard: (guard.line, guard.column, guard.instead))
    return found


def _guard(path: str, source: str, node: ast.stmt | ast.expr, instead: str = "pass") -> Guard:
    # ast.parse fills in the end of every node, though its type allows for None.
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    text = source.encode().splitlines()[node.lineno - 1].decode().strip()
    if instead != "pass":
        text = ast.unparse(node)
    return Guard(path, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text, instead)


def _changed(change: Change, source: str) -> Guard:
    """Return the guard of a listed change. Raises ``ValueError`` unless its text is in one line, once."""
    lines = source.split("\n")
    found = [number for number, line in enumerate(lines) if change.text in line]
    if len(found) != 1 or lines[found[0]].count(change.text) != 1:
        raise ValueError(f"{change.path} has {change.text!r} {len(found)} times, not once")
    column = len(lines[found[0]].split(change.text)[0].encode())
    stop = column + len(change.text.encode())
    line = found[0] + 1
    return Guard(change.path, line, column, line, stop, change.text, change.instead)


# Raises, and the names of errors


def _raises(tree: ast.AST, names: frozenset[str]) -> Iterator[ast.Raise]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None and not names.isdisjoint(_last_two(node.exc)):
            yield node


def _last_two(node: ast.expr) -> set[str | None]:
    """Return ``b`` and ``c`` for ``a.b.c(...)``: ``c`` is an error, or a method that makes error ``b``."""
    called = node.func if isinstance(node, ast.Call) else node
    maker = called.value if isinstance(called, ast.Attribute) else None
    return {_last_name(called), _last_name(maker)}


def _names_of_errors(trees: Sequence[ast.Module], known: frozenset[str]) -> frozenset[str]:
    """Return ``known`` and all names in ``trees`` that stand for, or return, one of them.

    Names are not told apart by the module they are in. Where two modules share a name, a raise too
    many is taken for a guard, which is better than one too few.
    """
    nodes = (node for tree in trees for node in ast.walk(tree))
    found = known.union(*(_names_from(node, known) for node in nodes))
    return known if found == known else _names_of_errors(trees, found)


def _names_from(node: ast.AST, known: frozenset[str]) -> set[str]:
    match node:
        case ast.alias(name=name, asname=str(asname)) if name in known:
            return {asname}
        case ast.ClassDef(name=name, bases=bases) if any(_last_name(b) in known for b in bases):
            return {name}
        case ast.FunctionDef(name=name, returns=ast.expr() as returns):
            return {name} if known & _names_in(returns) else set()
        case _:
            return set()


def _last_name(node: ast.expr | None) -> str | None:
    """Return ``c`` for ``c``, ``a.b.c`` and a call of either."""
    match node:
        case ast.Call(func=func):
            return _last_name(func)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None


def _names_in(annotation: ast.expr) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(annotation):
        match node:
            case ast.Constant(value=str(quoted)):
                names |= _names_in(ast.parse(quoted, mode="eval").body)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                names.add(name)
    return names


# Calls of checks


def _called_in_several_places(trees: Sequence[ast.Module], names: frozenset[str]) -> frozenset[str]:
    """Return the names of checks that raise one of ``names``, or call a function that does, and that two or
    more statements call. Names are not told apart by module here either."""
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    raising = frozenset(each.name for each in functions if any(_raises(each, names)))
    while more := {each.name for each in functions if any(_calls(each, raising))} - raising:
        raising |= more
    checks = frozenset(name for name in raising if name.lstrip("_").startswith(_CHECKS))
    places = Counter(_last_name(node.value) for tree in trees for node in _calls(tree, checks))
    return frozenset(name for name, count in places.items() if name is not None and count > 1)


def _calls(tree: ast.AST, names: frozenset[str]) -> Iterator[ast.Expr]:
    """Yield each statement that calls a function of ``names``, and does nothing else."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and _last_name(node.value) in names
        ):
            yield node


# Conditions of raises


def _conditions(tree: ast.AST, names: frozenset[str]) -> Iterator[ast.expr]:
    """Yield each of the alternatives of an ``if`` that does nothing but raise one of ``names``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(_raises(ast.Module(node.body[:1], []), names)):
            for part in ast.walk(node.test):
                if isinstance(part, ast.BoolOp) and isinstance(part.op, ast.Or):
                    yield from part.values


def without(source: str, guard: Guard) -> str:
    """Return ``source`` without ``guard``."""
    lines = source.encode().splitlines(keepends=True)
    first, last = guard.line - 1, guard.end_line - 1
    changed = lines[first][: guard.column] + guard.instead.encode() + lines[last][guard.end_column :]
    return b"".join([*lines[:first], changed, *lines[last + 1 :]]).decode()
