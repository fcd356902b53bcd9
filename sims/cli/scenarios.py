"""``secagg scenarios``: lists the scenarios (settings of simulations) of the package, or prints one."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from sims.cli.commands import Subparsers, user_errors
from sims.text_format import counted

if TYPE_CHECKING:
    from sims.scenario.shipped import Shipped


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "scenarios",
        help="list the scenarios that come with the package, or print one",
        description="List the scenarios that come with the package: what each is for, how many cells its "
        "sweep has, over which channel, and which directories of data it reads. With NAME, print that file. "
        "secagg simulate takes these names.",
        epilog="The exit status is 2 if there is no such scenario.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the scenario to print")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text (default text)")
    parser.set_defaults(run=run, extra="sims")


def run(args: argparse.Namespace) -> int:
    from sims.config_problems import ConfigError
    from sims.scenario.shipped import all_described, described

    with user_errors("scenarios", ConfigError):
        chosen = all_described() if args.name is None else [described(args.name)]
    if args.json:
        print(json.dumps(_as_json(chosen, whole=args.name is not None), indent=2))
    elif args.name is not None:
        print(chosen[0].path.read_text(encoding="utf-8"), end="")
    else:
        _show(chosen)
    return 0


def _as_json(chosen: "list[Shipped]", *, whole: bool) -> object:
    found = [{**asdict(each), "path": str(each.path)} for each in chosen]
    if not whole:
        return {"scenarios": found}
    return {**found[0], "text": chosen[0].path.read_text(encoding="utf-8")}


def _show(chosen: "list[Shipped]") -> None:
    if sys.stdout.isatty():
        _draw(chosen)
        return
    for each in chosen:
        print(f"{each.name}; {counted(each.cells, 'cell')}; {_channels(each)}; {_data(each)}; {each.purpose}")


def _draw(chosen: "list[Shipped]") -> None:
    import rich.table

    from sims.console_progress import Console

    drawn = rich.table.Table(title="shipped scenarios")
    for heading in ("name", "cells", "channel", "data", "what it is"):
        drawn.add_column(heading, no_wrap=heading == "name")
    for each in chosen:
        drawn.add_row(each.name, str(each.cells), _channels(each), _data(each), each.purpose)
    Console().print(drawn)


def _channels(each: "Shipped") -> str:
    return ", ".join(each.channels)


def _data(each: "Shipped") -> str:
    return f"reads {', '.join(each.data)}" if each.data else "needs no files"
