"""The list of all commands of ``secagg``, by group, and helpers for their dependencies and errors.

A command is a module in this folder that defines ``add``, and a function that runs it::

    def add(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser("demo", help="show a secure sum at work")
        parser.set_defaults(run=run, extra="sims")

    def run(args: argparse.Namespace) -> int:
        from sims.console_progress import Console
        ...

``extra`` names the extra (optional dependencies in pyproject.toml) that the command needs, if any. Each start
imports the modules of all commands, so slow modules and those of an extra are imported inside ``run``.
"""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TypeAlias

# argparse has no public name for the type that add_subparsers returns.
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

# Commands by purpose, in the order of the help.
GROUPS = {
    "run": ("simulate", "report", "audit", "demo", "init", "scenarios"),
    "plan": ("plan", "params", "noise", "preflight"),
    "deploy": ("serve", "join", "keygen", "enrol", "evidence"),
    "check": ("drill", "check-noise", "version"),
}
COMMANDS = tuple(name for group in GROUPS.values() for name in group)


def add_all(subparsers: Subparsers) -> None:
    """Add the parser of every command that has a module (all but ``version``) to ``subparsers``."""
    for name in COMMANDS:
        if name != "version":
            import_module(f"sims.cli.{name.replace('-', '_')}").add(subparsers)


class UserError(Exception):
    """An error that the user can correct. Its text is all that the user sees."""


@contextmanager
def user_errors(command: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn exceptions of the types `errors` into a `UserError` whose lines begin with the command."""
    try:
        yield
    except errors as error:
        lines = str(error).splitlines() or [""]
        raise UserError("\n".join(f"secagg {command}: {line}" for line in lines)) from None


# The modules that each extra of pyproject.toml installs.
MODULES = {
    "deploy": ("pydantic",),
    "fl": ("torch",),
    "sims": ("dp_accounting", "matplotlib", "pydantic", "rich", "scipy"),
}


def require(extra: str) -> None:
    """Raise ``UserError`` unless all modules of ``extra``, a set of optional dependencies, are installed."""
    if not has(extra):
        raise UserError(f"this command needs the extra '{extra}': pip install 'secagg[{extra}]'")


def has(extra: str) -> bool:
    """Return whether all modules of ``extra``, a set of optional dependencies, are installed."""
    return all(_is_there(module) for module in MODULES[extra])


def _is_there(module: str) -> bool:
    """Return whether a module is installed, without importing it, because importing may be slow."""
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None


_INDENT = 4
_NARROWEST = 40


def listing(commands: Subparsers) -> str:
    """Return the help text that lists `commands` by group. Commands without a group come last."""
    # argparse keeps the help of commands in private actions.
    helps = {str(each.dest): str(each.help) for each in commands._choices_actions}
    grouped = {title: [name for name in names if name in helps] for title, names in GROUPS.items()}
    known = {name for names in grouped.values() for name in names}
    grouped["more"] = [name for name in helps if name not in known]
    column = _INDENT + 2 + max(map(len, helps), default=0)
    blocks = [
        "\n".join([f"{title}:", *(_line(name, helps[name], column) for name in names)])
        for title, names in grouped.items()
        if names
    ]
    return "\n\n".join([*blocks, "secagg COMMAND --help says more about each."])


def _line(name: str, text: str, column: int) -> str:
    width = max(shutil.get_terminal_size().columns - 2, column + _NARROWEST)
    return textwrap.fill(
        text,
        width,
        initial_indent=f"{' ' * _INDENT}{name}".ljust(column),
        subsequent_indent=" " * column,
        break_on_hyphens=False,
    )
