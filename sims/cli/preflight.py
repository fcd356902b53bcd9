"""``secagg preflight``: whether a session can work, before anyone enrols."""

import argparse
import json
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING, Any

from sims.cli.errors import UserError
from sims.cli.numbers import fraction, number_or_proportion, proportion, whole
from sims.cli.registry import Subparsers

if TYPE_CHECKING:
    from secagg import Preflight
    from secagg.spec import Bound

TRUST_LEVELS = ("curious_server", "malicious_server")
NORMS = ("linf", "l2", "count")
KIND = "sum"
PART = "update"
PROBLEMS = 2


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("preflight", help="check quorum, bits and drop-out margin of a session")
    parser.add_argument("--clients", type=whole(1, 1 << 20), default=50, help="size of the cohort")
    parser.add_argument(
        "--corrupt",
        type=number_or_proportion,
        default=5,
        help="most clients that collude with the server: a number, or a part of all such as 0.1 or 1/10",
    )
    parser.add_argument(
        "--dropout",
        type=proportion,
        default=Fraction(1, 10),
        help="part of the clients that may leave, such as 0.1 or 1/10",
    )
    parser.add_argument("--trust", choices=TRUST_LEVELS, default="malicious_server")
    parser.add_argument("--sums", type=whole(1, 64), default=3, help="sums in the session")
    parser.add_argument("--dim", type=whole(1, 1 << 32), default=1000, help="elements of the vector")
    parser.add_argument("--bits", type=whole(1, 64), default=32, help="bits sent for each element")
    parser.add_argument("--bound", type=fraction, default=Fraction(1), help="bound of the vector")
    parser.add_argument("--norm", choices=NORMS, default="linf", help="what the bound is on")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    report = _preflight(args)
    if args.json:
        print(json.dumps(_as_json(report, args), indent=2))
    else:
        print("\n".join(_lines(report, args)))
    return 0 if report.ok else PROBLEMS


def _preflight(args: argparse.Namespace) -> "Preflight":
    from secagg import Part, SumSpec, Table, Trust, preflight

    part = Part(name=PART, size=args.dim, bits=args.bits, bound=_bound(args.norm, args.bound))
    return preflight(
        Table({KIND: SumSpec(parts=(part,))}),
        clients=args.clients,
        trust=Trust(args.trust),
        corrupt=_colluders(args),
        dropout=args.dropout,
        sums=args.sums,
    )


def _colluders(args: argparse.Namespace) -> int:
    """A part of the clients is rounded down: it is the most that may collude."""
    corrupt: int | Fraction = args.corrupt
    return floor(corrupt * args.clients) if isinstance(corrupt, Fraction) else corrupt


def _bound(norm: str, bound: Fraction) -> "Bound":
    from secagg import L2, Count, LInf
    from secagg.errors import SpecError

    try:
        if norm == "count":
            if bound.denominator != 1:
                raise UserError(f"secagg preflight: a count has a whole bound, not {float(bound)}")
            return Count(int(bound))
        return L2(float(bound)) if norm == "l2" else LInf(float(bound))
    except SpecError as error:
        raise UserError(f"secagg preflight: {error}") from None
    except OverflowError:
        raise UserError("secagg preflight: the bound is too large") from None


def _as_json(report: "Preflight", args: argparse.Namespace) -> dict[str, Any]:
    (part,) = report.parts
    return {
        "clients": report.clients,
        "corrupt": _colluders(args),
        "dropout": str(args.dropout),
        "trust": str(report.trust),
        "sums": args.sums,
        "dim": args.dim,
        "norm": args.norm,
        "bound": float(args.bound),
        "threshold": report.threshold,
        "quorum": report.quorum,
        "margin": report.margin,
        "bits": part.bits,
        "bits_needed": part.bits_needed,
        "resolution": part.resolution,
        "bytes_up": {"setup": report.setup_bytes_up, "each_sum": report.sum_bytes_up[KIND]},
        "ok": report.ok,
        "problems": list(report.problems),
    }


def _lines(report: "Preflight", args: argparse.Namespace) -> list[str]:
    (part,) = report.parts
    rows = {
        "clients": f"{report.clients}, of whom {_colluders(args)} may collude with a {report.trust}",
        "threshold": "none" if report.threshold is None else f"{report.threshold} shares open a mask",
        "quorum": f"{report.quorum} clients must stay to the end of every sum",
        "margin": f"{report.margin} may leave; {floor(args.dropout * args.clients)} are expected to",
        "bits": f"{part.bits} given, {part.bits_needed} needed",
        "resolution": _resolution(part.resolution, part.bits_needed <= part.bits),
        "bytes up": f"{report.setup_bytes_up:,} per client in set-up, "
        f"{report.sum_bytes_up[KIND]:,} in each of {args.sums} sums",
    }
    lines = [f"{name:<12}{text}" for name, text in rows.items()]
    return [*lines, *(f"{'problem':<12}{problem}" for problem in report.problems)]


def _resolution(step: float | None, fits: bool) -> str:
    if step is not None:
        return f"{step:.3g} in the vector's own unit"
    return "exact" if fits else "none: the total could wrap"
