"""``secagg preflight``: checks before clients enrol whether a session with given settings can work."""

import argparse
import json
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING, Any

from sims.cli import options
from sims.cli.commands import Subparsers, UserError, user_errors
from sims.text_format import counted

if TYPE_CHECKING:
    from secagg import Preflight
    from secagg.sum_spec import Bound

GRAPHS = ("auto", "complete", "ring")
NORMS = ("linf", "l2", "count")
KIND = "sum"
PART = "update"
PROBLEMS = 2


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "preflight",
        help="check quorum, bits and drop-out margin of a session",
        description="Check quorum, bits and drop-out margin of a session before clients enrol.",
        epilog="The exit status is 0 if the session can work, and 2 if it cannot or an argument is wrong.",
    )
    options.add_whole(parser, "--clients", 1, 1 << 20, 50, "size of the cohort")
    options.add_corrupt(parser, 5, " from 0, or a part of all from 0 to below 1 such as 0.1 or 1/10")
    options.add_dropout(parser, "the whole session")
    options.add_trust(parser)
    options.add_key_agreement(parser)
    options.add_choice(
        parser,
        "--graph",
        GRAPHS,
        default="auto",
        text="which clients share secrets: each with all others, or with some neighbours on a ring, which "
        "large cohorts need and a curious_server is trusted to draw",
    )
    options.add_whole(parser, "--sums", 1, 64, 3, "sums in the session")
    options.add_whole(parser, "--dim", 1, 1 << 32, 1000, "elements of the vector")
    options.add_whole(parser, "--bits", 1, 64, 32, "bits sent for each element")
    text = "bound of the vector, above 0, such as 2.5 or 5/2"
    options.add_value(parser, "--bound", options.fraction, Fraction(1), "NUMBER", text)
    options.add_choice(parser, "--norm", NORMS, default="linf", text="what the bound is on")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines (default lines)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    report = _preflight(args)
    print(json.dumps(_as_json(report, args), indent=2) if args.json else "\n".join(_lines(report, args)))
    return 0 if report.ok else PROBLEMS


def _preflight(args: argparse.Namespace) -> "Preflight":
    from secagg import Part, SessionParams, SumSpec, Table, Trust, preflight
    from secagg.errors import LocalError

    with user_errors("preflight", LocalError):
        part = Part(name=PART, size=args.dim, bits=args.bits, bound=_bound(args.norm, args.bound))
        return preflight(
            Table({KIND: SumSpec(parts=(part,))}),
            args.clients,
            SessionParams(
                trust=Trust.parse(args.trust),
                corrupt=options.colluders(args),
                dropout=args.dropout,
                sums=args.sums,
                graph=args.graph,
                key_agreement=args.key_agreement,
            ),
        )


def _bound(norm: str, bound: Fraction) -> "Bound":
    from secagg import L2, Count, LInf

    if norm == "count":
        if bound.denominator != 1:
            raise UserError(f"secagg preflight: a count has a whole bound, not {bound}")
        return Count(int(bound))
    try:
        return L2(float(bound)) if norm == "l2" else LInf(float(bound))
    except OverflowError:
        raise UserError("secagg preflight: the bound is too large") from None


def _as_json(report: "Preflight", args: argparse.Namespace) -> dict[str, Any]:
    (part,) = report.parts
    return {
        "clients": report.clients,
        "corrupt": options.colluders(args),
        "dropout": str(args.dropout),
        "trust": str(report.trust),
        "key_agreement": args.key_agreement,
        "sums": args.sums,
        "dim": args.dim,
        "norm": args.norm,
        "bound": float(args.bound),
        "graph": report.graph and str(report.graph),
        "neighbours": report.neighbours,
        "threshold": report.threshold,
        "quorum": report.quorum,
        "margin": report.margin,
        "liars": report.liars,
        "bits": part.bits,
        "bits_needed": part.bits_needed,
        "resolution": part.resolution,
        "bytes_up": {"setup": report.setup_bytes_up, "each_sum": report.sum_bytes_up[KIND]},
        "ok": report.ok,
        "problems": list(report.problems),
        "cautions": list(report.cautions),
    }


def _lines(report: "Preflight", args: argparse.Namespace) -> list[str]:
    (part,) = report.parts
    graph = threshold = margin = liars = "none"
    if report.graph is not None:
        graph = f"{report.graph}: each client shares with {counted(report.neighbours, 'other')}"
    if report.threshold is not None:
        expected = floor(args.dropout * args.clients)
        threshold = f"a mask opens with {counted(report.threshold, 'share')}"
        margin = f"{report.margin} may leave; {expected} {'is' if expected == 1 else 'are'} expected to"
        liars = f"{report.liars} may lie, one after another, before too few clients are left"
    rows = {
        "clients": f"{report.clients}, of whom {options.colluders(args)} may collude with a {report.trust}",
        "keys": args.key_agreement,
        "graph": graph,
        "threshold": threshold,
        "quorum": f"{counted(report.quorum, 'client')} must stay to the end of every sum",
        "margin": margin,
        "liars": liars,
        "bits": f"{part.bits} given, {part.bits_needed} needed",
        "resolution": _resolution(part.resolution, part.bits_needed <= part.bits),
        "bytes up": f"{report.setup_bytes_up:,} per client in set-up, "
        f"{report.sum_bytes_up[KIND]:,} in each sum ({counted(args.sums, 'sum')})",
    }
    lines = [f"{name:<12}{text}" for name, text in rows.items()]
    lines += [f"{'problem':<12}{problem}" for problem in report.problems]
    return lines + [f"{'caution':<12}{caution}" for caution in report.cautions]


def _resolution(step: float | None, fits: bool) -> str:
    if step is not None:
        return f"{step:.3g} in the vector's own unit"
    return "exact" if fits else "none: the total could wrap"
