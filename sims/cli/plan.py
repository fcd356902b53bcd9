"""``secagg plan``: what a run of an algorithm costs and reveals, before it is run."""

import argparse
import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING, Any

from sims.cli.errors import UserError
from sims.cli.numbers import fraction, number_or_proportion, proportion
from sims.cli.options import TRUST_LEVELS, Whole, add_choice
from sims.cli.registry import Subparsers
from sims.words import counted

if TYPE_CHECKING:
    from protocols.algorithm import AnyAlgorithm
    from protocols.catalogue import Entry
    from protocols.privacy import Privacy
    from sims.outlook import GroupOutlook, Outlook, SumOutlook


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="tell what an algorithm's run costs and reveals, before it is run",
        description="Tell what a round of an algorithm costs and reveals: its sums, the bits and bytes that "
        "each client sends, what a server learns from each total, and whether drop-outs let it complete. "
        "Without an algorithm, list those there are.",
        epilog="The exit status is 0 if it can work, and 2 if it cannot or an argument is wrong.",
    )
    parser.add_argument("algorithm", nargs="?", metavar="ALGORITHM", help="its name, such as rfa")
    Whole("--clients", 2, 1 << 20, 100, "most clients of a sum").add(parser)
    Whole("--dim", 1, 1 << 32, 1000, "parameters of the model").add(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the algorithm, such as clip=10; may be given several times",
    )
    for name, when in (("training", "while it trains, before it sends anything"), ("sum", "within each sum")):
        parser.add_argument(
            f"--dropout-{name}",
            type=proportion,
            default=Fraction(0),
            metavar="PART",
            help=f"the chance that a client is lost {when}, from 0 to below 1 (default 0)",
        )
    parser.add_argument(
        "--corrupt",
        type=number_or_proportion,
        default=0,
        metavar="PART",
        help="most clients that collude with the server: a whole number, or a part of all (default 0)",
    )
    add_choice(
        parser,
        "--trust",
        TRUST_LEVELS,
        default="curious_server",
        text="what clients guard against: a server that only reads along, or one that also lies",
    )
    add_budget(parser)
    Whole("--session-sums", 1, 64, 64, "most sums of one session, whose keys are exchanged once").add(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines (default lines)")
    parser.set_defaults(run=run)


def add_budget(parser: argparse.ArgumentParser) -> None:
    """What the private variant of an algorithm is planned with."""
    for name, text in (
        ("--rho", "zero-concentrated differential privacy that all rounds together may cost a client"),
        ("--epsilon", "the same as epsilon, at --delta"),
        ("--delta", "of epsilon, such as 1e-5"),
    ):
        parser.add_argument(name, type=fraction, metavar="NUMBER", help=f"{text} (default none)")
    Whole("--rounds", 1, 1 << 20, 100, "rounds that share that budget").add(parser)


def run(args: argparse.Namespace) -> int:
    from protocols.catalogue import CATALOGUE
    from sims.outlook import as_json

    if args.algorithm is None:
        rows = {name: entry.summary for name, entry in CATALOGUE.items()}
        print(json.dumps(rows, indent=2) if args.json else "\n".join(_list(rows)))
        return 0
    outlook = _outlook(args)
    if args.json:
        print(json.dumps({"algorithm": args.algorithm, **as_json(outlook)}, indent=2))
    else:
        print("\n".join(_lines(args.algorithm, outlook)))
    return 0


def _list(rows: Mapping[str, str]) -> Iterator[str]:
    width = 2 + max(map(len, rows))
    return (f"{name:<{width}}{text}" for name, text in rows.items())


def _outlook(args: argparse.Namespace) -> "Outlook":
    from protocols.catalogue import find
    from secagg.errors import LocalError
    from secagg.thresholds import Trust
    from sims.outlook import Conditions, look_ahead

    try:
        algorithm = _build(find(args.algorithm), args)
        conditions = Conditions(
            trust=Trust.parse(args.trust),
            corrupt=_colluders(args),
            dropout_training=args.dropout_training,
            dropout_sum=args.dropout_sum,
            session_sums=args.session_sums,
        )
        return look_ahead(algorithm, conditions)
    except LocalError as error:
        hint = "; parameters are set with --set NAME=VALUE" if "must be set" in str(error) else ""
        raise UserError(f"secagg plan: {args.algorithm}: {error}{hint}") from None


def _colluders(args: argparse.Namespace) -> int:
    corrupt: int | Fraction = args.corrupt
    return corrupt if isinstance(corrupt, int) else floor(corrupt * args.clients)


def _build(entry: "Entry", args: argparse.Namespace) -> "AnyAlgorithm":
    settings: dict[str, Any] = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"secagg plan: --set needs NAME=VALUE, such as clip=10, not {text!r}")
        settings[name.replace("-", "_")] = _value(value)
    if args.rho is not None or args.epsilon is not None:
        settings["privacy"] = _privacy(entry, args, settings)
    try:
        return entry.build(dim=args.dim, clients=args.clients, **settings)
    except TypeError:  # a text where a number belongs, deep inside a bound
        raise UserError(f"secagg plan: {entry.name}: a value of --set has the wrong type") from None


def _privacy(entry: "Entry", args: argparse.Namespace, settings: dict[str, Any]) -> "Privacy":
    """The budget that this algorithm takes, with what belongs to it taken out of `settings`."""
    from protocols.privacy import Privacy
    from protocols.private import PrivateSteps
    from protocols.private_rounds import PrivateRounds
    from secagg.noise.goal import Goal
    from secagg.noise.promise import Promise

    if "privacy" not in entry.parameters:
        raise UserError(f"secagg plan: {entry.name} has no private variant: leave out --rho and --epsilon")
    kinds = {each.__name__: each for each in (Privacy, PrivateSteps, PrivateRounds)}
    kind = kinds[str(entry.parameters["privacy"].annotation).partition(" ")[0]]
    own = {each.name: settings.pop(each.name) for each in fields(kind) if each.name in settings}
    lost = 1 - (1 - args.dropout_training) * (1 - args.dropout_sum)
    dropouts = floor(lost * args.clients)
    promise = Promise(clients=args.clients, dropouts=dropouts, colluders=_colluders(args))
    goal = Goal(rho=_float(args.rho), epsilon=_float(args.epsilon), delta=_float(args.delta))
    return kind(promise=promise, goal=goal, rounds=args.rounds, **own)


def _float(number: Fraction | None) -> float | None:
    return None if number is None else float(number)


def _value(text: str) -> object:
    """A number, a truth value or a list as Python writes it; everything else is text."""
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


# --- lines --------------------------------------------------------------------------------------------


def _lines(name: str, outlook: "Outlook") -> Iterator[str]:
    yield f"{name}: {outlook.clients:,} clients, {outlook.dim:,} parameters, {outlook.trust}"
    if not outlook.sums:
        yield "no sum at all: a server learns nothing, and nothing is sent"
        return
    yield (
        f"a round takes up to {counted(outlook.sums_per_round, 'sum')} and "
        f"{outlook.round_bytes:,} bytes from each client"
    )
    yield (
        f"a session lasts {counted(outlook.rounds_per_session, 'round')}; its keys and shares take "
        f"{outlook.setup_bytes:,} bytes from each client, once"
    )
    yield f"nothing is released over fewer than {outlook.quorum:,} clients"
    for each in outlook.sums:
        yield from _sum_lines(each)
    for group in outlook.groups:
        yield _group_line(group)
    if outlook.unsafe:
        yield f"under a malicious_server it is refused: {outlook.unsafe}"


def _sum_lines(each: "SumOutlook") -> Iterator[str]:
    yield f"{each.kind}: up to {counted(each.times, 'time')} a round, {each.bytes_up:,} bytes each"
    yield f"  reveals        {each.reveals}; and over how many clients"
    if each.rho is not None:
        yield f"  private        yes: {each.rho:.3g} rho (zCDP) each; only the number of clients has no noise"
    else:
        yield "  private        no: the total is exact, and whoever knows all other inputs knows the last one"
    for part in each.parts:
        size = f"{counted(part.size, 'number')} of {counted(part.bits, 'bit')}"
        yield f"  {part.name:<14} {size}: {part.meaning}"


def _group_line(group: "GroupOutlook") -> str:
    if group.sums == 1:
        return f"the sum of {group.name} is released with probability {group.completes:.4g}"
    return (
        f"all {group.sums} sums of {group.name} are released with probability {group.completes:.4g}, "
        f"{group.expected:.3g} of them on average; whoever leaves in between ends the group, and its last "
        "total stands"
    )
