"""``secagg params``: finds the number of neighbours and the threshold for the secret sharing of a cohort."""

import argparse
import json
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sims.cli.commands import Subparsers, UserError, user_errors
from sims.cli.options import add_choice, add_corrupt, add_dropout, add_whole
from sims.text_format import counted

if TYPE_CHECKING:
    from secagg.graph_parameters import GraphParameters

SERVERS = ("curious_server", "semi_malicious_server", "malicious_server")
GRAPHS = ("auto", "complete", "ring")
FORMS = ("exact", "google")
MAX_CLIENTS = 10**9
MAX_NEIGHBOURS = 1 << 17
MAX_BITS = 1024
# Python refuses to print integers of twice this size, and they would be unreadable.
MAX_FRACTION_BITS = 1 << 13


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "params",
        help="find the neighbours and the threshold that a cohort needs",
        description="Find the fewest neighbours, and the least threshold for them, with which a cohort "
        "withstands corrupt clients and drop-outs.",
        epilog="The exit status is 0 if parameters were found, and 2 if not or if an argument is wrong.",
    )
    add_whole(parser, "--clients", 2, MAX_CLIENTS, 1000, "size of the cohort")
    add_corrupt(parser, Fraction(1, 20), " from 0, or a part of all from 0 to below 1 such as 0.05 or 1/20")
    add_dropout(parser, "each sum")
    add_whole(parser, "--sums", 1, 64, 1, "sums in which clients leave; they do not return")
    add_choice(
        parser,
        "--trust",
        SERVERS,
        default="curious_server",
        text="a server that follows the protocol, one that lies but draws the graph honestly, or one that "
        "does anything",
    )
    _add_graph_and_form(parser)
    add_whole(parser, "--neighbours", 2, MAX_NEIGHBOURS, 2, "least neighbours wanted")
    add_whole(parser, "--sigma", 1, MAX_BITS, 40, "the graph fails to protect with probability 2^-N at most")
    add_whole(parser, "--eta", 1, MAX_BITS, 30, "drop-outs stop the sum with probability 2^-N at most")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines (default lines)")
    parser.set_defaults(run=run)


def _add_graph_and_form(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--graph",
        choices=GRAPHS,
        default="auto",
        action=_Given,
        help="who shares with whom: auto is complete where that is cheap or the server malicious, else a "
        "ring; a ring also if --form is given, --graph is not, and the server is not malicious "
        "(default auto)",
    )
    parser.add_argument(
        "--form",
        choices=FORMS,
        default="exact",
        action=_Given,
        help="how a ring's neighbours are counted: drawn from all others, or as in Google's finder from all "
        "clients (default exact)",
    )
    parser.set_defaults(given=())


class _Given(argparse.Action):
    """An argparse action that stores the value and notes in `args.given` that the user gave the option."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  # argparse passes it
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = (*namespace.given, self.dest)


def run(args: argparse.Namespace) -> int:
    case = _Case.of(args)
    found = _find(case, args)
    print(json.dumps(_as_json(found, case, args), indent=2) if args.json else _lines(found, case, args))
    return 0


@dataclass(frozen=True)
class _Case:
    """How many clients are corrupt, and how many drop out over all sums, as fractions and as numbers."""

    corrupt_part: Fraction
    dropout: Fraction  # the fraction over all sums
    corrupt: int
    dropped: int

    @classmethod
    def of(cls, args: argparse.Namespace) -> "_Case":
        from secagg.graph_parameters import dropout_over, part_of

        clients: int = args.clients
        corrupt: int | Fraction = args.corrupt
        part = corrupt if isinstance(corrupt, Fraction) else Fraction(corrupt, clients)
        dropout = dropout_over(args.sums, args.dropout)
        if dropout.denominator.bit_length() > MAX_FRACTION_BITS:
            raise UserError("secagg params: the drop-out over all sums has too many digits: round --dropout")
        return cls(part, dropout, part_of(clients, part), part_of(clients, dropout))


def _find(case: _Case, args: argparse.Namespace) -> "GraphParameters":
    from secagg.errors import ParameterError
    from secagg.graph_parameters import Form, GraphChoice, ServerClass, graph_parameters

    if args.neighbours > max(2, args.clients - 1):
        raise UserError(
            f"secagg params: {args.clients} clients have at most {args.clients - 1} neighbours each: "
            "lower --neighbours"
        )
    with user_errors("params", ParameterError):
        return graph_parameters(
            args.clients,
            corrupt=case.corrupt,
            dropped=case.dropped,
            server=ServerClass(args.trust),
            graph=GraphChoice(_graph(args)),
            form=Form(args.form),
            sigma=args.sigma,
            eta=args.eta,
            min_neighbours=args.neighbours,
        )


def _graph(args: argparse.Namespace) -> str:
    """Return --graph, but "ring" if --form is given, --graph is not, and the server is not malicious."""
    form_only = "form" in args.given and "graph" not in args.given
    return "ring" if form_only and args.trust != "malicious_server" else str(args.graph)


def _as_json(found: "GraphParameters", case: _Case, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "clients": args.clients,
        "corrupt": case.corrupt,
        "corrupt_part": str(case.corrupt_part),
        "dropout": str(args.dropout),
        "sums": args.sums,
        "cumulative_dropout": str(case.dropout),
        "dropped": case.dropped,
        "trust": args.trust,
        "form": args.form,
        "sigma": args.sigma,
        "eta": args.eta,
        "graph": str(found.graph),
        "neighbours": found.neighbours,
        "threshold": found.threshold,
        "log2_corrupt": found.log2_corrupt,
        "log2_disconnected": found.log2_disconnected,
        "log2_unrecoverable": found.log2_unrecoverable,
    }


def _lines(found: "GraphParameters", case: _Case, args: argparse.Namespace) -> str:
    rows = {
        "clients": f"{args.clients:,}, of whom {case.corrupt:,} may collude with a {args.trust}",
        "drop-out": f"{case.dropped:,} may be missing after {counted(args.sums, 'sum')}",
        "graph": f"{found.graph}, where each client has {counted(found.neighbours, 'neighbour')}",
        "threshold": f"a mask opens with {counted(found.threshold, 'share')}",
        "corrupt": f"{_chance(found.log2_corrupt)} that some client's neighbours can open its mask",
        "disconnected": f"{_chance(found.log2_disconnected)} that the honest fall apart into several sums",
        "unrecoverable": f"{_chance(found.log2_unrecoverable)} that some client keeps too few neighbours",
    }
    return "\n".join(f"{name:<15}{text}" for name, text in rows.items())


def _chance(log2: float | None) -> str:
    return "no chance" if log2 is None else f"at most 2^{log2:.1f}"
