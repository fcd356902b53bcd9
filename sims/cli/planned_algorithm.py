"""Builds an algorithm from the options of ``secagg plan``."""

import argparse
import ast
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sims.cli.commands import UserError
from sims.cli.options import colluders

if TYPE_CHECKING:
    from protocols.algorithm import AnyAlgorithm
    from protocols.catalogue_entry import CatalogueEntry
    from protocols.privacy_budget import PrivacyBudget

ROUNDS = 100  # if --rounds is not given
_STEP = 0.1  # a placeholder for a missing step, to find further missing parameters
_WORDS: dict[str, object] = {"true": True, "yes": True, "false": False, "no": False, "none": None}
_OPTIONS = {"dim": "--dim", "clients": "--clients", "privacy": "--rho or --epsilon"}
_OF_THE_BUDGET = {
    "goal": "--rho or --epsilon",
    "promise": "--clients, --dropouts and --corrupt",
    "rounds": "--rounds",
}


def build(entry: "CatalogueEntry", args: argparse.Namespace) -> "AnyAlgorithm":
    """Build the algorithm `entry` from the options in `args`, or raise `ParameterError` or `UserError`."""
    from protocols.checks import MissingBound, MissingBounds
    from secagg.errors import ParameterError

    settings = _settings(entry, args)
    private = args.rho is not None or args.epsilon is not None
    if not private:
        _refuse_budget(entry, args, settings)
        return _made(entry, args, settings)
    budget = {name: settings.pop(name) for name in entry.budget_names if name in settings}
    try:
        settings["privacy"] = _privacy(entry, args, budget)
    except MissingBound as missing:
        # With a placeholder, the algorithm reports further missing parameters.
        settings["privacy"] = _privacy(entry, args, budget | {missing.name: _STEP})
        try:
            _made(entry, args, settings)
        except MissingBounds as others:
            raise MissingBounds((missing, *others.missing)) from None
        except MissingBound as other:
            raise MissingBounds((missing, other)) from None
        except ParameterError:
            pass
        raise
    return _made(entry, args, settings)


def _settings(entry: "CatalogueEntry", args: argparse.Namespace) -> dict[str, Any]:
    from protocols.checks import shown

    settings: dict[str, Any] = {}
    for text in args.set or ():
        typed, equals, value = text.partition("=")
        name = typed.strip().replace("-", "_")
        if not equals or not name:
            raise _wrong(f"--set needs NAME=VALUE, such as clip=10, not {shown(text)}")
        if name in settings:
            raise _wrong(f"--set {name} is given twice")
        option = _OPTIONS.get(name) or (_OF_THE_BUDGET.get(name) if name not in entry.parameters else None)
        if option is not None:
            raise _wrong(f"{name} is not set with --set: use {option}")
        settings[name] = _value(value)
    return settings


def _wrong(text: str) -> UserError:
    return UserError(f"secagg plan: {text}")


def _refuse_budget(entry: "CatalogueEntry", args: argparse.Namespace, settings: dict[str, Any]) -> None:
    own = ("delta", "dropouts") if args.transport else ("delta", "rounds", "dropouts")
    given = [name for name in own if getattr(args, name) is not None]
    options = [f"--{name}" for name in given] + ["--removable"] * args.removable
    names = [name for name in entry.budget_names if name in settings]
    if options or names:
        which = (options or names)[0]
        if entry.budget is None:
            raise _wrong(f"{entry.name} has no private variant: leave out {which}")
        raise _wrong(f"{which} belongs to the private variant: add --rho or --epsilon")


def _made(entry: "CatalogueEntry", args: argparse.Namespace, settings: dict[str, Any]) -> "AnyAlgorithm":
    try:
        return entry.build(dim=args.dim, clients=args.clients, **settings)
    except TypeError:  # a bound was given a text or a list instead of a number
        odd = [name for name, value in settings.items() if isinstance(value, str | list | tuple | dict)]
        raise _wrong(f"{entry.name}: the value of {' or '.join(odd) or '--set'} has the wrong type") from None


def _privacy(entry: "CatalogueEntry", args: argparse.Namespace, own: dict[str, Any]) -> "PrivacyBudget":
    """Return the privacy budget, of the type `entry.budget`. `own` has its parameters from --set, by name.
    Raise `UserError` if the algorithm has no private variant."""
    from secagg.distributed_noise import NoiseAssumptions
    from secagg.noise.privacy_goal import Goal

    if entry.budget is None:
        raise _wrong(f"{entry.name} has no private variant: leave out --rho and --epsilon")
    promise = NoiseAssumptions(
        clients=args.clients, dropouts=_dropouts(args), colluders=colluders(args), removable=args.removable
    )
    goal = Goal(rho=_float(args.rho), epsilon=_float(args.epsilon), delta=_float(args.delta))
    rounds = ROUNDS if args.rounds is None else args.rounds
    return entry.budget(promise=promise, goal=goal, rounds=rounds, **own)


def _dropouts(args: argparse.Namespace) -> int:
    """Return how many drop-outs per sum the noise is planned for: --dropouts or, if not given, a number that
    at most one sum in a hundred exceeds. The latter is lowered if it would leave only colluders."""
    from sims.plan.completion_probability import dropouts_to_plan_for

    if args.dropouts is not None:
        return int(args.dropouts)
    lost: Fraction = 1 - (1 - args.dropout_training) * (1 - args.dropout_sum)
    likely = dropouts_to_plan_for(args.clients, lost)
    most: int = args.clients - colluders(args) - 1  # at least one client must be left to add noise
    return max(min(likely, most), 0)


def _float(number: Fraction | None) -> float | None:
    return None if number is None else float(number)


def _value(text: str) -> object:
    """Parse VALUE of --set NAME=VALUE: true/yes, false/no, none or a Python literal; else return the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
