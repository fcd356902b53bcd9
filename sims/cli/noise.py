"""``secagg noise``: finds the noise and the rounding grid that make a sum differentially private."""

import argparse
import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sims.cli import noise_sweep
from sims.cli.commands import Subparsers, UserError
from sims.cli.options import add_choice, add_value, add_whole, fraction, whole
from sims.text_format import ADJACENCY_MEANINGS, counted

if TYPE_CHECKING:
    from secagg.noise.part_plan import Plan

ADJACENCIES = ("zero-out", "add-remove", "replace")
ORDERS = ("continuous", "integer")
AUTO = "auto"
SMALLEST = Fraction(1, 10**300)
LARGEST = Fraction(10**300)
NOTICEABLE = 1 + 1e-6


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "noise",
        help="find the grid and the noise that hide one client in a sum",
        description="Find the grid and the noise with which sums of vectors of bounded norm are "
        "differentially private: every client adds its own discrete Gaussian noise, and the server sees "
        "only the total.",
        epilog="The exit status is 0 if a plan was found (with --sweep, one at least), and 2 if not or if an "
        'argument is wrong. JSON then is {"ok": false, "problem": ..., "bits_needed": ...}; bits_needed is '
        "null if more bits do not help.",
    )
    add_whole(parser, "--clients", 1, 1 << 20, 100, "clients in a sum")
    add_whole(parser, "--dim", 1, 1 << 32, 65536, "elements of a vector; padded to a power of two")
    _add_real(parser, "--clip", Fraction(1), "bound of a vector's Euclidean norm, above 0")
    _add_real(parser, "--epsilon", Fraction(1), "privacy loss of all sums together, 1e-9 to 1e6")
    _add_real(parser, "--delta", Fraction(1, 100_000), "probability that it is exceeded, above 0 and below 1")
    text = (
        "bits of the ring, 1 to 64; more bits mean a finer grid and less noise; auto is the fewest with "
        "which rounding adds at most 2 %% to a vector's norm and every component of the noise has a standard "
        "deviation of at least 4 grid points"
    )
    add_value(parser, "--bits", _bits, AUTO, "N", text)
    _add_real(parser, "--stddevs", Fraction(6), "standard deviations that the ring holds, 1e-3 to 1e18")
    _add_client_options(parser)
    add_choice(
        parser, "--adjacency", ADJACENCIES, default="zero-out", text="which inputs cannot be distinguished"
    )
    add_choice(
        parser,
        "--orders",
        ORDERS,
        default="continuous",
        text="Renyi orders at which epsilon is computed: all real ones, or 2 to 128 and 256, which are too "
        "few for a small epsilon",
    )
    _add_sweep(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines (default lines)")
    parser.set_defaults(run=run)


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    text = (
        "find the noise for several values of epsilon, clients, bits or dropouts, such as epsilon=1,2,4 or "
        "clients=100:500:100; given several times, for all combinations (default None)"
    )
    parser.add_argument("--sweep", action="append", type=noise_sweep.axis, metavar="NAME=VALUES", help=text)
    for name, form in (("--csv", "CSV"), ("--plot", "a plot, as SVG")):
        text = f"write the sweep to this file as {form} (default None)"
        parser.add_argument(name, type=Path, metavar="FILE", help=text)


def _add_client_options(parser: argparse.ArgumentParser) -> None:
    add_whole(parser, "--dropouts", 0, 1 << 20, 0, "most clients that drop out of a sum")
    add_whole(parser, "--colluders", 0, 1 << 20, 0, "most clients whose noise the server knows")
    add_whole(parser, "--sums", 1, 1 << 16, 1, "sums that share epsilon")
    text = "remove surplus noise once the remaining clients are known (default: it remains)"
    parser.add_argument("--removable", action="store_true", help=text)


def _add_real(parser: argparse.ArgumentParser, name: str, default: Fraction, text: str) -> None:
    """Add an option for a number above zero, which is parsed as an exact fraction."""
    add_value(parser, name, _positive, default, "NUMBER", text)


def _positive(text: str) -> Fraction:
    """Parse a number from 1e-300 to 1e300 for argparse, as an exact fraction."""
    number = fraction(text)
    if not SMALLEST <= number <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0, or is too small or too large")
    return number


def _bits(text: str) -> int | None:
    """Parse the number of bits per element, 1 to 64, for argparse; "auto" gives None."""
    return None if text == AUTO else whole(1, 64)(text)


def run(args: argparse.Namespace) -> int:
    for name in ("clip", "epsilon", "delta", "stddevs"):
        setattr(args, name, float(getattr(args, name)))
    from secagg.errors import LocalError

    if args.sweep:
        return noise_sweep.run(args, _plan)
    if args.csv is not None or args.plot is not None:
        raise UserError("secagg noise: --csv and --plot write a sweep: add --sweep, such as epsilon=1,2,4")
    try:
        plan = _plan(args)
    except (LocalError, ImportError) as error:  # the latter without dp-accounting
        if args.json:
            bits = getattr(error, "bits_needed", None)
            print(json.dumps({"ok": False, "problem": str(error), "bits_needed": bits}, indent=2))
        raise UserError(f"secagg noise: {error}") from None
    print(json.dumps(_as_json(plan, args), indent=2) if args.json else "\n".join(_lines(plan, args)))
    return 0


def _plan(args: argparse.Namespace) -> "Plan":
    from secagg import Goal, NoiseAssumptions, calibrate_vector

    goal = Goal(
        epsilon=args.epsilon, delta=args.delta, sums=args.sums, adjacency=args.adjacency, orders=args.orders
    )
    promise = NoiseAssumptions(
        clients=args.clients, dropouts=args.dropouts, colluders=args.colluders, removable=args.removable
    )
    return calibrate_vector(
        promise=promise, goal=goal, size=args.dim, clip=args.clip, bits=args.bits, stddevs=args.stddevs
    )


def _as_json(plan: "Plan", args: argparse.Namespace) -> dict[str, Any]:
    return {
        "ok": True,
        "clients": args.clients,
        "dropouts": args.dropouts,
        "colluders": args.colluders,
        "removable": args.removable,
        "least_roster": plan.least_roster,
        "dim": args.dim,
        "padded_dim": plan.width,
        "clip": args.clip,
        "sums": args.sums,
        "bits": plan.bits,
        "stddevs": args.stddevs,
        "scale": plan.scale,
        "variance": str(plan.variance),
        "granularity": plan.granularity,
        "sensitivity": plan.sensitivity,
        "sigma_local": plan.sigma_local,
        "sigma_over_granularity": plan.sigma_over_granularity,
        "least_sigma_over_granularity": plan.least_sigma_over_granularity,
        "sigma_central": plan.sigma_central,
        "sigma_released": plan.sigma_released,
        "coarse": _is_coarse(plan),
        "tau": plan.tau,
        "rho": plan.rho,
        "epsilon": plan.epsilon,
        "delta": args.delta,
        "adjacency": args.adjacency,
        "orders": args.orders,
    }


def _lines(plan: "Plan", args: argparse.Namespace) -> list[str]:
    surplus = "is removed" if args.removable else "remains"
    padded = f", padded to {plan.width:,}" if plan.width != args.dim else ""
    components = ""
    if plan.least_sigma_over_granularity != plan.sigma_over_granularity:
        components = f", in components from {plan.least_sigma_over_granularity:.6g} on"
    rows = {
        "clients": f"{args.clients:,}, of whom {args.dropouts:,} may drop out and {args.colluders:,} collude"
        f"; surplus noise {surplus}",
        "least_roster": f"{counted(plan.least_roster, 'client')} must be there for a sum to begin",
        "vector": f"{counted(args.dim, 'element')}{padded}; its norm is clipped to {args.clip:g}",
        "ring": f"{counted(plan.bits, 'bit')}; a total wraps beyond {args.stddevs:g} standard deviations",
        "granularity": f"{plan.granularity:.6g} is one grid point",
        "sensitivity": f"{plan.sensitivity:.6g} is the norm of a vector at most, after rounding",
        "sigma_local": f"{plan.sigma_local:.6g} is what every client adds: "
        f"{plan.sigma_over_granularity:.6g} grid points{components}",
        "sigma_central": f"{plan.sigma_central:.6g} is what a total holds at least, as planned",
        "sigma_released": f"{plan.sigma_released:.6g} is what it holds if no client drops out",
        "usefulness": f"the noise on a total has a norm of about {plan.noise_norm:.4g}, and the total itself "
        f"of {args.clients * args.clip:.4g} at most",
        "tau": f"{plan.tau:.3g} is how far all clients' noise is from the noise that epsilon is for",
        "rho": f"{plan.rho:.6g} for every sum ({args.adjacency}): another measure of the loss, which adds "
        "up over sums (zero-concentrated differential privacy)",
        "epsilon": f"{plan.epsilon:.6g} for {counted(args.sums, 'sum')} at a delta of {args.delta:g} "
        f"({args.adjacency}; {args.orders} orders)",
        "meaning": f"{ADJACENCY_MEANINGS[args.adjacency]} makes whatever the totals may show at most "
        "e^epsilon times as likely, up to a probability of delta",
    }
    if _is_coarse(plan):
        rows["coarse"] = (
            "a ledger adds up rho, which on so coarse a grid means a larger epsilon: take more bits"
        )
    return [f"{name:<16}{text}" for name, text in rows.items()]


def _is_coarse(plan: "Plan") -> bool:
    """Return whether, due to coarse rounding, a sum costs noticeably more rho than its part of the goal."""
    return plan.rho > plan.goal.rho_per_sum * NOTICEABLE
