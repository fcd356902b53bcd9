"""``secagg plan``: shows what a run of an algorithm costs and reveals, before it runs."""

import argparse
import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from sims.cli import options
from sims.cli.commands import Subparsers, UserError, user_errors
from sims.cli.planned_algorithm import ROUNDS

if TYPE_CHECKING:
    from secagg.errors import LocalError
    from sims.plan.cost_plan import CostPlan
    from sims.plan.transport_latency import TransportCost


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="show what a run of an algorithm costs and reveals, before it runs",
        description="Show what a round of an algorithm costs and reveals: its sums, the bits and bytes that "
        "each client sends, what a server learns from each total, and how likely drop-outs stop it. "
        "Without an algorithm, list all algorithms.",
        epilog="The exit status is 0 if the algorithm can run, and 2 if it cannot or an argument is wrong.",
    )
    parser.add_argument("algorithm", nargs="?", metavar="ALGORITHM", help="its name, such as rfa")
    text = "list the parameters of the algorithm, without a plan (default: plan)"
    parser.add_argument("--parameters", action="store_true", help=text)
    options.add_whole(parser, "--clients", 2, 1 << 20, 100, "most clients of a sum")
    options.add_whole(parser, "--dim", 1, 1 << 32, 1000, "parameters of the model")
    text = "a parameter of the algorithm, such as clip=10; may be given several times (default None)"
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help=text)
    for name, when in (("training", "while it trains, before it sends anything"), ("sum", "within each sum")):
        text = f"the probability that a client is lost {when}, from 0 to below 1"
        options.add_value(parser, f"--dropout-{name}", options.proportion, Fraction(0), "PART", text)
    options.add_corrupt(parser, 0, ", or a part of all")
    options.add_choice(
        parser,
        "--trust",
        options.TRUST_LEVELS,
        default="curious_server",
        text="what clients guard against: a server that follows the protocol, or one that also lies",
    )
    options.add_key_agreement(parser)
    _add_budget(parser)
    options.add_whole(
        parser, "--session-sums", 1, 64, 64, "most sums of one session, whose keys are exchanged once"
    )
    text = "what carries the messages: also show the time that it adds to a round (default None)"
    parser.add_argument("--transport", choices=options.TRANSPORTS, help=text)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines (default lines)")
    parser.set_defaults(run=run)


def _add_budget(parser: argparse.ArgumentParser) -> None:
    """Add the options for the privacy budget of an algorithm's differentially private variant."""
    for name, text in (
        ("--rho", "zero-concentrated differential privacy that all rounds together may cost a client"),
        ("--epsilon", "the same as epsilon, at --delta"),
        ("--delta", "of epsilon, such as 1e-5"),
    ):
        parser.add_argument(name, type=options.fraction, metavar="NUMBER", help=f"{text} (default None)")
    # These options have no default, so that it can be detected if they are given without a budget.
    for name, least, text in (
        (
            "--rounds",
            1,
            "rounds that share that budget, and for which --transport adds up its time, 1 to 1048576; if not "
            f"given, {ROUNDS} (default None)",
        ),
        (
            "--dropouts",
            0,
            "most clients that drop out of a sum with noise, 0 to 1048576; if not given, as many as are "
            "exceeded once in a hundred sums (default None)",
        ),
    ):
        parser.add_argument(name, type=options.whole(least, 1 << 20), metavar="N", help=text)
    text = "remove surplus noise once the remaining clients are known (default: it remains)"
    parser.add_argument("--removable", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    if args.algorithm is None:
        return _list_algorithms(args)
    if args.parameters:
        return _list_parameters(args)
    from sims.cli.plan_text import lines, transport_lines
    from sims.plan.cost_plan import as_json

    plan = _cost_plan(args)
    transport = _transport_cost(plan, args)
    if args.json:
        more = {} if transport is None else {"transport": transport.as_json()}
        print(json.dumps({"algorithm": args.algorithm, **as_json(plan), **more}, indent=2))
        return 0
    more_lines = () if transport is None else transport_lines(plan, transport)
    print("\n".join([*lines(args.algorithm, plan), *more_lines]))
    return 0


def _transport_cost(plan: "CostPlan", args: argparse.Namespace) -> "TransportCost | None":
    from sims.plan.transport_latency import transport_cost

    if args.transport is None:
        return None
    return transport_cost(plan, args.transport, rounds=ROUNDS if args.rounds is None else args.rounds)


def _list_algorithms(args: argparse.Namespace) -> int:
    from protocols.catalogue import CATALOGUE

    rows = {name: entry.summary for name, entry in CATALOGUE.items()}
    print(json.dumps(rows, indent=2) if args.json else "\n".join(_list(rows)))
    return 0


def _list(rows: Mapping[str, str]) -> Iterator[str]:
    width = 2 + max(map(len, rows))
    return (f"{name:<{width}}{text}" for name, text in rows.items())


def _list_parameters(args: argparse.Namespace) -> int:
    from protocols.catalogue import find
    from secagg.errors import ParameterError
    from sims.cli.plan_text import parameter_lines, parameters_as_json

    with user_errors("plan", ParameterError):
        settings = find(args.algorithm).settings
    found, lines = parameters_as_json(settings), parameter_lines(args.algorithm, settings)
    print(json.dumps(found, indent=2) if args.json else "\n".join(lines))
    return 0


def _cost_plan(args: argparse.Namespace) -> "CostPlan":
    from protocols.catalogue import find
    from secagg.errors import LocalError
    from secagg.session_params import SessionParams
    from secagg.trust_levels import Trust
    from sims.cli.planned_algorithm import build
    from sims.plan.cost_plan import Conditions, plan_costs

    name = ""
    try:
        entry = find(args.algorithm)
        name = f" {entry.name}:"
        algorithm = build(entry, args)
        conditions = Conditions(
            params=SessionParams(
                trust=Trust.parse(args.trust),
                corrupt=options.colluders(args),
                sums=args.session_sums,
                key_agreement=args.key_agreement,
            ),
            dropout_training=args.dropout_training,
            dropout_sum=args.dropout_sum,
        )
        return plan_costs(algorithm, conditions)
    except LocalError as error:
        raise UserError(f"secagg plan:{name} {_explained(error, args)}") from None


def _explained(error: "LocalError", args: argparse.Namespace) -> str:
    """Return the text of an error, and which option of ``secagg plan`` to change, if that helps."""
    from protocols.checks import MissingBound, MissingBounds
    from secagg.errors import SpecTooLarge

    if isinstance(error, MissingBound | MissingBounds):
        return f"{error}; parameters are set with --set NAME=VALUE"
    if isinstance(error, SpecTooLarge):
        return f"--dim {args.dim} is too large: an input of a sum may have up to 2 GiB"
    return str(error)
