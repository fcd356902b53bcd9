"""The commands there are.

A command is a module in this folder that defines ``add``, and a function that runs it::

    def add(subparsers: Subparsers) -> None:
        parser = subparsers.add_parser("demo", help="show a secure sum at work")
        parser.set_defaults(run=run, extra="sims")

    def run(args: argparse.Namespace) -> int:
        from sims.console import Console
        ...

``extra`` names the extra that the command needs, and is left out if it needs none. Every start of
the command line imports every command's module, so what is slow to import or belongs to an extra
is imported inside ``run``.
"""

import argparse
from importlib import import_module
from typing import TypeAlias

# argparse offers no public name for what add_subparsers returns.
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

# By what they are for, and in the order in which the help shows them.
GROUPS = {
    "run": ("simulate", "report", "audit", "demo", "init", "scenarios"),
    "plan": ("plan", "params", "noise", "preflight"),
    "deploy": ("serve", "join", "keygen", "enrol"),
    "check": ("drill", "check-noise", "version"),
}
COMMANDS = tuple(name for group in GROUPS.values() for name in group)


def add_all(subparsers: Subparsers) -> None:
    """Add every command's parser to ``subparsers``."""
    for name in COMMANDS:
        import_module(f"sims.cli.{name.replace('-', '_')}").add(subparsers)
