"""``secagg check-noise``: measures whether the noise of a sum has the promised distribution."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_choice, add_value, add_whole, delta, fraction, whole
from sims.text_format import counted

if TYPE_CHECKING:
    from sims.noise_audit.noise_check import NoiseTrial, NoiseTrialResult

FAULTS = ("none", "halved", "silent", "unscaled", "reused")


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "check-noise",
        help="measure the noise of a sum and what it proves about epsilon",
        description="Measure the noise of a sum. Sums over zeros must follow the promised law "
        "(chi-square and variance). Sums with and without a canary give a lower bound on epsilon, which must "
        "not exceed the claimed one, and comes close to it if the audit is strong. Canaries always have "
        "2 clients and vectors of 4 elements, for which the audit is strongest. No client colludes.",
        epilog="The exit status is 0 if everything is as promised, 1 if the noise or the bound says "
        "otherwise, and 2 if an argument is wrong.",
    )
    add_whole(parser, "--clients", 2, 1024, 20, "clients in a sum over zeros")
    add_whole(parser, "--dim", 1, 1 << 24, 1 << 16, "elements of a vector over zeros")
    add_whole(parser, "--sums", 1, 1 << 16, 16, "sums over zeros; times the elements, at least 100")
    add_whole(parser, "--dropouts", 0, 1022, 0, "most clients that may drop out")
    add_whole(parser, "--dropped", 0, 1022, 0, "clients that do")
    parser.add_argument(
        "--removable", action="store_true", help="surplus noise is removed (default: it stays)"
    )
    text = "standard deviation of the noise over what one client can move, 1/64 to 64"
    add_value(parser, "--multiplier", _multiplier, 1.0, "NUMBER", text)
    add_whole(parser, "--canaries", 1, 10**8, 2000, "sums with a canary, and as many without")
    add_whole(parser, "--secure", 0, 10**6, 20, "as many more of each through server and clients")
    text = (
        "probability with which epsilon may be exceeded, above 0 and below 1; the claimed epsilon and its "
        "lower bound both are for it"
    )
    add_value(parser, "--delta", delta, 1e-5, "NUMBER", text)
    add_choice(parser, "--fault", FAULTS, default="none", text="a fault to inject, which the check must find")
    text = "makes all draws repeatable, except those through server and clients, which are always fresh"
    add_value(parser, "--seed", whole(0, 1 << 63), 0, "N", f"{text}; 0 to 2^63")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines (default lines)")
    parser.set_defaults(run=run, extra="sims")


def _multiplier(text: str) -> float:
    number = fraction(text)
    if not 1 <= number * 64 <= 64 * 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1/64 to 64")
    return float(number)


def run(args: argparse.Namespace) -> int:
    from secagg.errors import LocalError
    from sims.console_progress import bar
    from sims.noise_audit.noise_check import run_trial

    with user_errors("check-noise", LocalError), bar() as progress:
        outcome = run_trial(_trial(args), progress)
    print(json.dumps(_as_json(outcome), indent=2) if args.json else "\n".join(_lines(outcome)))
    return 0 if outcome.holds else 1


def _trial(args: argparse.Namespace) -> "NoiseTrial":
    from sims.noise_audit.noise_check import NoiseTrial
    from sims.noise_audit.unmasked_sums import Fault

    return NoiseTrial(
        clients=args.clients, size=args.dim, sums=args.sums, dropouts=args.dropouts, dropped=args.dropped,
        removable=args.removable, multiplier=args.multiplier, canaries=args.canaries, secure=args.secure,
        delta=args.delta, fault=Fault(args.fault), seed=args.seed,
    )  # fmt: skip


def _as_json(outcome: "NoiseTrialResult") -> dict[str, Any]:
    trial, finding, bound = outcome.trial, outcome.finding, outcome.bound
    return {
        "clients": trial.clients,
        "dim": trial.size,
        "sums": trial.sums,
        "dropouts": trial.dropouts,
        "dropped": trial.dropped,
        "removable": trial.removable,
        "multiplier": trial.multiplier,
        "seed": trial.seed,
        "fault": trial.fault,
        "samples": finding.samples,
        "variance": finding.variance,
        "variance_promised": finding.expected,
        "variance_ratio": finding.ratio,
        "variance_p": finding.variance_p,
        "chi_square_p": finding.chi_square_p,
        "noise_conforms": outcome.conforms,
        "adjacency": "zero-out",
        "delta": trial.delta,
        "confidence": outcome.confidence,
        "runs_per_arm": trial.canaries,
        "secure_runs_per_arm": trial.secure,
        "epsilon": outcome.epsilon,
        "epsilon_gaussian": bound.epsilon_gaussian,
        "epsilon_gaussian_over_epsilon": outcome.closeness,
        "epsilon_clopper_pearson": bound.epsilon_clopper_pearson,
        "epsilon_secure": None if outcome.secure is None else outcome.secure.epsilon_gaussian,
        "bound_conforms": outcome.bounded,
        "holds": outcome.holds,
    }


def _lines(outcome: "NoiseTrialResult") -> list[str]:
    finding, bound, trial = outcome.finding, outcome.bound, outcome.trial
    verdict = "as promised" if outcome.conforms else "NOT as promised"
    lines = [
        f"noise of {counted(trial.sums, 'total')} over zeros, {finding.samples:,} elements in all: {verdict}",
        f"  variance {finding.variance:.6g}, promised {finding.expected:.6g}: ratio {finding.ratio:.5f}, "
        f"p = {finding.variance_p:.3g}",
        f"  chi-square of the values: p = {finding.chi_square_p:.3g}",
        f"epsilon (zero-out, delta {trial.delta:g}) of noise {trial.multiplier:g} times one client's reach: "
        f"{outcome.epsilon:.4f}",
        f"  by {counted(trial.canaries, 'sum')} with a canary and as many without (confidence "
        f"{outcome.confidence:.2%}):",
        f"    if noise is Gaussian: {_at_least(bound.epsilon_gaussian)}",
        f"    for any noise: {_at_least(bound.epsilon_clopper_pearson)}",
    ]
    if outcome.secure is not None:
        lines += [
            f"  by {counted(trial.secure, 'sum')} of each through server and clients:",
            f"    if noise is Gaussian: {_at_least(outcome.secure.epsilon_gaussian)}",
        ]
    if not outcome.bounded:
        lines.append("  that is MORE than is claimed: the noise is too small")
    return lines


def _at_least(epsilon: float) -> str:
    return f"at least {epsilon:.4f}" if epsilon else "too few canaries to tell"
