"""``secagg check-noise``: measures whether the noise of a sum has the promised distribution."""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sims.cli.commands import Subparsers, user_errors
from sims.cli.options import add_choice, add_value, add_whole, delta, fraction, whole
from sims.text_format import counted

if TYPE_CHECKING:
    from sims.noise_audit.alarm_budget import NoiseTest
    from sims.noise_audit.noise_check import NoiseTrial, NoiseTrialResult

FAULTS = (
    "none", "halved", "weakened", "silent", "unscaled", "reused", "shifted", "unnoised-element", "repeated",
    "paired", "opposite", "unclipped", "rounded-down", "rounded-away", "rotated",
)  # fmt: skip


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "check-noise",
        help="measure the noise of a sum and what it proves about epsilon",
        description="Measure the noise of sums and the encoding of inputs. Over zeros, the noise of every "
        "client and of the totals must have the promised variance and law, without correlations between "
        "elements, clients and sums. Inputs beyond the bound and between grid points must come out clipped "
        "and without bias. Small sums of other kinds are tested as well: of counts, of bounded elements, "
        "with drop-outs and removable noise. Sums with and without a canary give a lower bound on epsilon, "
        "which must not exceed the claimed one, and comes close to it if the audit is strong. Canaries "
        "always have 2 clients and vectors of 4 elements, for which the audit is strongest. No client "
        "colludes.",
        epilog="Correct noise raises an alarm in at most one of 100,000 checks. The exit status is 0 if "
        "everything is as promised, 1 if a test or a bound says otherwise, and 2 if an argument is wrong.",
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
    from sims.noise_audit.faults import Fault
    from sims.noise_audit.noise_check import NoiseTrial

    return NoiseTrial(
        clients=args.clients, size=args.dim, sums=args.sums, dropouts=args.dropouts, dropped=args.dropped,
        removable=args.removable, multiplier=args.multiplier, canaries=args.canaries, secure=args.secure,
        delta=args.delta, fault=Fault(args.fault), seed=args.seed,
    )  # fmt: skip


def _as_json(outcome: "NoiseTrialResult") -> dict[str, Any]:
    trial, bound, totals = outcome.trial, outcome.bound, outcome.kinds[0].noise[0]
    alarmed = set(outcome.alarms)
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
        "samples": totals.samples,
        "variance": totals.variance,
        "variance_promised": totals.expected,
        "variance_ratio": totals.ratio,
        "variance_p": totals.of_totals("variance").p,
        "chi_square_p": totals.of_totals("chi-square of the values").p,
        "tests": [
            {
                "kind": kind,
                "subject": test.subject,
                "test": test.name,
                "p": test.p,
                "measured": test.measured,
                "expected": test.expected,
                "conforms": test not in alarmed,
            }
            for kind, tests in _tests(outcome)
            for test in tests
        ],
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


def _tests(outcome: "NoiseTrialResult") -> "Iterator[tuple[str, Sequence[NoiseTest]]]":
    """Yield the tests of each kind of sum, by its name, and then those of sums through server and clients."""
    for kind in outcome.kinds:
        yield kind.kind, kind.tests
    if outcome.session:
        yield "through server and clients", outcome.session


def _lines(outcome: "NoiseTrialResult") -> list[str]:
    bound, trial, totals = outcome.bound, outcome.trial, outcome.kinds[0].noise[0]
    verdict = "as promised" if outcome.conforms else "NOT as promised"
    lines = [
        f"noise of {counted(trial.sums, 'total')} over zeros, {totals.samples:,} elements in all: {verdict}",
        f"  variance {totals.variance:.6g}, promised {totals.expected:.6g}: ratio {totals.ratio:.5f}",
        *_table(outcome),
        f"epsilon (zero-out, delta {trial.delta:g}) of noise {trial.multiplier:g} times one client's reach: "
        f"{outcome.epsilon:.4f}",
        f"  by {counted(trial.canaries, 'sum')} with a canary and as many without (confidence "
        f"{outcome.confidence:.5%}):",
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


def _table(outcome: "NoiseTrialResult") -> "Iterator[str]":
    """Yield a line for each kind of sum, with its least likely result, and one for each alarm."""
    alarmed = set(outcome.alarms)
    yield f"  {'kind of sum':<28} {'tests':>5} {'alarms':>6}  least likely result"
    for kind, tests in _tests(outcome):
        worst = min(tests, key=lambda test: test.p)
        wrong = [test for test in tests if test in alarmed]
        least = f"{worst.subject}, {worst.name}: p = {worst.p:.3g}"
        yield f"  {kind:<28} {len(tests):>5} {len(wrong):>6}  {least}"
        yield from (f"    NOT as promised: {test.subject}, {_alarm(test)}" for test in wrong)


def _alarm(test: "NoiseTest") -> str:
    if test.measured is None:
        return f"{test.name}, p = {test.p:.3g}"
    expected = "" if test.expected is None else f", expected {test.expected:.6g}"
    return f"{test.name} {test.measured:.6g}{expected}, p = {test.p:.3g}"


def _at_least(epsilon: float) -> str:
    return f"at least {epsilon:.4f}" if epsilon else "too few canaries to tell, so this proves nothing"
