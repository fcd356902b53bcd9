"""RFA, RFA-1 and federated averaging under corruption, beside "Robust Aggregation for Federated Learning".

The published figures are those of a linear model on EMNIST by writer, read off a chart of its authors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from papers.plots import Labels, Panel, draw, lines
from papers.seeds import over_seeds
from sims.sweep import Record, read_records

RULES: Final = ("FedAvg", "RFA", "RFA-1")
SHARDS: Final = "rfa-mnist"
WRITERS: Final = "rfa-unipen"
LONG: Final = "rfa-omniscient"
_NONE: Final = "none"
_KINDS: Final = (_NONE, "negated", "omniscient")
_OMNISCIENT: Final = "omniscient 0.25"
# At corruption 0, 0.01, 0.1, 0.25 and 0.3, in the order of `RULES`.
_PUBLISHED: Final[Mapping[str, tuple[float, float, float]]] = {
    "none": (64.2, 62.9, 63.0),
    "negated 0.01": (64.2, 63.3, 63.0),
    "negated 0.1": (60.1, 62.2, 62.2),
    "negated 0.25": (43.1, 53.6, 51.4),
    "negated 0.3": (24.1, 26.9, 32.0),
}
_SUMS: Final = {"FedAvg": 1, "RFA": 3, "RFA-1": 1}  # in a round
# So that a rule looks the same in all figures.
_NAMES: Final = tuple(name for rule in RULES for name in (rule, f"{rule}, omniscient"))
_MISSING: Final = "missing"
_UNKNOWN: Final = "not found"

# Of every corruption and rule, the cells of all seeds.
Cells = Mapping[tuple[str, str], Sequence[Record]]
Attacked = Mapping[str, Sequence[Record]]  # by rule


def tables(results: Path) -> dict[str, str]:
    """Return our results beside the published ones."""
    shards, writers = _cells(results, SHARDS), _cells(results, WRITERS)
    return {
        "rfa-mnist": _by_corruption(shards, published=True),
        "rfa-unipen": _by_corruption(writers),
        "rfa-communication": _equal_communication({"MNIST": shards, "UNIPEN": writers}),
        "rfa-omniscient": _omniscient(results, shards, writers),
        "rfa-secure": _secure(results, shards),
    }


def figures(results: Path, out: Path) -> None:
    """Draw accuracy against corruption, and the recovery of RFA under the omniscient attack."""
    panels = [
        _panel(_cells(results, SHARDS), "MNIST, two classes a client"),
        _panel(_cells(results, WRITERS), "UNIPEN, by writer"),
    ]
    draw(out / "rfa-corruption.svg", *panels)
    draw(out / "rfa-omniscient.svg", *_long_panels(_by_rule(results, LONG)))


# --- cells ---


def _records(results: Path, name: str) -> list[Record]:
    return list(read_records(results / f"{name}.jsonl"))


def _cells(results: Path, name: str) -> dict[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(_records(results, name), key=_seed):
        found.setdefault((record.cell["corruption"], record.cell["rule"]), []).append(record)
    return found


def _seed(record: Record) -> int:
    return int(record.settings["seed"])


def _corruptions(cells: Cells) -> list[str]:
    """Return no corruption first, then each kind from the lowest level to the highest."""

    def rank(corruption: str) -> tuple[int, float]:
        kind, _, level = corruption.partition(" ")
        return _KINDS.index(kind), float(level or 0)

    return sorted({corruption for corruption, _ in cells}, key=rank)


def _accuracy(result: Mapping[str, Any], place: int = -1) -> float:
    """Return the accuracy over all test samples, with true labels also for corrupt clients; in per cent."""
    return 100 * float(result["series"]["common"]["pooled_accuracy"][place])


def _accuracies(records: Sequence[Record], place: int = -1) -> list[float]:
    return [_accuracy(record.result, place) for record in records]


def _agreements(record: Record) -> list[float]:
    return [float(value) for _, value in record.result["observed"]["agreement"]]


# --- tables ---


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    every = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in every)


def _by_corruption(cells: Cells, *, published: bool = False) -> str:
    """Return the mean over seeds, followed by the value of every seed."""
    head = ["corruption", *RULES, "RFA ahead of FedAvg by"]
    head += [f"{rule}, published for EMNIST" for rule in RULES] if published else []
    rows = []
    for corruption in _corruptions(cells):
        shown = [_values(cells.get((corruption, rule), ())) for rule in RULES]
        row = [corruption, *shown, _lead(cells, corruption)]
        theirs = [f"{value:.1f}" for value in _PUBLISHED.get(corruption, ())]
        rows.append(row + (theirs or [_UNKNOWN] * len(RULES)) * published)
    return _table(head, rows)


def _values(records: Sequence[Record], place: int = -1) -> str:
    if not records:
        return _MISSING
    values = _accuracies(records, place)
    each = f" ({', '.join(f'{value:.1f}' for value in values)})" if len(values) > 1 else ""
    return f"{over_seeds(values).mean:.1f}{each}"


def _lead(cells: Cells, corruption: str) -> str:
    """Compare over seeds that both have run with."""
    ours, theirs = (
        {_seed(record): _accuracy(record.result) for record in cells.get((corruption, rule), ())}
        for rule in ("RFA", "FedAvg")
    )
    both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    return f"{over_seeds(both).mean:+.1f}" if both else _MISSING


def _equal_communication(data: Mapping[str, Cells]) -> str:
    """Return results after as many rounds as give all rules the same number of sums."""
    head = ["data", "corruption", "sums", *(f"{rule}, sums in a round: {_SUMS[rule]}" for rule in RULES)]
    rows = []
    for name, cells in data.items():
        for corruption in _corruptions(cells):
            every = [cells.get((corruption, rule), ()) for rule in RULES]
            sums = _rounds(cells)[-1]
            places = [_rounds(cells).index(sums // _SUMS[rule]) for rule in RULES]
            shown = [_values(records, place) for records, place in zip(every, places, strict=True)]
            rows.append([name, corruption, str(sums), *shown])
    return _table(head, rows)


def _rounds(cells: Cells) -> list[int]:
    """Return the rounds with measurements, which are the same in all cells."""
    rounds: list[int] = next(iter(cells.values()))[0].result["rounds"]
    return rounds


def _omniscient(results: Path, shards: Cells, writers: Cells) -> str:
    """Return the agreement of honest clients without the attack, and the result with it."""
    agreement = {record.cell["clients"]: _agreements(record) for record in _records(results, "rfa-agreement")}
    two, every = agreement["two classes"], agreement["all classes"]
    rows: list[tuple[str, list[float], Attacked]] = [
        ("MNIST, two classes a client", two, _attacked(shards)),
        ("the same, longer", two, _by_rule(results, LONG)),
        ("MNIST, all classes", every, _by_rule(results, "rfa-iid")),
        ("UNIPEN, by writer", _agreements(writers[_NONE, "FedAvg"][0]), _attacked(writers)),
    ]
    head = ["clients", "rounds", "agreement, first and last", "they prevail up to", *RULES]
    return _table(head, [_attack_row(*row) for row in rows])


def _attacked(cells: Cells) -> Attacked:
    return {rule: cells.get((_OMNISCIENT, rule), ()) for rule in RULES}


def _by_rule(results: Path, name: str) -> Attacked:
    records = sorted(_records(results, name), key=_seed)
    return {rule: [record for record in records if record.cell["rule"] == rule] for rule in RULES}


def _attack_row(name: str, agreement: Sequence[float], cells: Attacked) -> list[str]:
    """With an agreement of a, honest clients pull a median by (1 - p) a one way, and a part p of all that is
    corrupt by p the other way: honest ones prevail up to p = a / (1 + a).
    """
    first, last = agreement[0], agreement[-1]
    most = [f"{100 * each / (1 + each):.0f} %" for each in (first, last)]
    rounds = str(cells["FedAvg"][0].settings["rounds"])
    shown = [_values(cells.get(rule, ())) for rule in RULES]
    return [name, rounds, f"{first:.2f}, {last:.2f}", ", ".join(most), *shown]


def _secure(results: Path, shards: Cells) -> str:
    """Compare the same cell over plain and over secure sums, after the rounds of the latter."""
    (secure,) = _records(results, "rfa-secure")
    rounds = secure.settings["rounds"]
    same = (record for record in shards["negated 0.25", "RFA"] if _seed(record) == _seed(secure))
    plain = next(same).result
    place = plain["rounds"].index(rounds)
    rows = [
        [f"{kind} sums", str(rounds), *_digits(result["series"]["common"], where)]
        for kind, result, where in (("plain", plain, place), ("secure", secure.result, -1))
    ]
    return _table(["channel", "rounds", "accuracy", "mean of clients' accuracies", "loss"], rows)


def _digits(series: Mapping[str, Sequence[float]], place: int) -> list[str]:
    return [f"{series[name][place]:.6f}" for name in ("pooled_accuracy", "mean_accuracy", "pooled_loss")]


# --- figures ---


def _panel(cells: Cells, title: str) -> Panel:
    """Return negated images, and the omniscient attack if it was run."""
    series: dict[str, Any] = {}
    for rule in RULES:
        for kind in _KINDS[1:]:
            levels = {_NONE: 0.0} | {
                each: float(each.removeprefix(kind)) for each in _corruptions(cells) if each.startswith(kind)
            }
            name = rule if kind == _KINDS[1] else f"{rule}, {kind}"
            series[name] = _curve(cells, rule, levels)
    labels = Labels(x="corrupt part of all training samples", y="accuracy, %", title=title)
    return lines(series, labels, band="range", names=_NAMES)


def _curve(cells: Cells, rule: str, levels: Mapping[str, float]) -> tuple[list[float], list[list[float]]]:
    """Return a row for each seed that has all of them."""
    columns = [_accuracies(cells[corruption, rule]) for corruption in levels]
    runs = min(map(len, columns))
    return list(levels.values()), [[column[run] for column in columns] for run in range(runs)]


def _long_panels(cells: Attacked) -> tuple[Panel, Panel]:
    """Return accuracy and agreement by round, with a row for each seed."""
    accuracies: dict[str, Any] = {}
    agreements: dict[str, Any] = {}
    for rule in RULES:
        results = [record.result for record in cells[rule]]
        series = [result["series"]["common"]["pooled_accuracy"] for result in results]
        accuracies[rule] = results[0]["rounds"], [[100 * value for value in run] for run in series]
        observed = [rounds for rounds, _ in results[0]["observed"]["agreement"]]
        agreements[rule] = observed, [_agreements(record) for record in cells[rule]]
    title = Labels(x="round", y="accuracy, %", title="omniscient attack, 25 %")
    return (
        lines(accuracies, title, band="range", names=_NAMES),
        lines(
            agreements,
            Labels(x="round", y="agreement of honest updates"),
            band="range",
            levels={"as strong as the attack": 1 / 3},
            names=_NAMES,
        ),
    )
