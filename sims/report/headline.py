"""Writes the headline of a report: one sentence about the result, and a few key figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from sims import text_format
from sims.audit.audit_result import Verdict
from sims.audit.guarantee_text import Strength, effective_epsilon, exposed
from sims.report.reported_run import MEASURES, ReportedRun
from sims.text_format import counted, values_of

_APART: Final = 0.05  # smaller differences of accuracy are not mentioned
_SEED: Final = "seed"


@dataclass(frozen=True)
class KeyFigure:
    """A number shown at the top of the page, such as the accuracy, with its name and a short remark."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class _Method:
    """A group of runs that differ only in the seed. Their accuracies are averaged."""

    name: str
    runs: Sequence[ReportedRun]

    @property
    def accuracy(self) -> float | None:
        """The mean of the runs' final accuracies; None if a run has no accuracy."""
        found = [each.accuracy for each in self.runs]
        known = [value for value in found if value is not None]
        return fmean(known) if known and len(known) == len(found) else None


def sentence(runs: Sequence[ReportedRun]) -> str:
    """Return one sentence about what the runs achieved, such as accuracy, number of clients and epsilon."""
    return _of_one(runs[0]) if len(runs) == 1 else _of_several(runs)


def _of_one(run: ReportedRun) -> str:
    subject = run.audit.subject
    if run.audit.integrity.withheld:
        return f"{run.algorithm}: records of this run were altered, and what they say is not shown."
    if subject.done == 0:
        return f"{run.algorithm} has not finished a round yet."
    accuracy = run.accuracy
    verb = "kept" if run.attacked else "reached"
    done = _without_accuracy(run) if accuracy is None else f"{verb} {text_format.percent(accuracy)}"
    return f"{run.algorithm} {done} {_with(run)}; {_privacy(run)}."


def _without_accuracy(run: ReportedRun) -> str:
    if run.headline is None:  # a server measures nothing besides sums with noise
        return f"trained for {counted(run.audit.achieved.completed, 'round')}"
    loss = run.final("pooled_loss")
    return f"came to a loss of {text_format.plain(loss)}" if loss is not None else "diverged"


def _of_several(runs: Sequence[ReportedRun]) -> str:
    methods = _methods(runs)
    ranked = sorted(((each.accuracy or 0.0, each) for each in methods), key=lambda pair: -pair[0])
    if any(each.accuracy is None for each in methods):
        return f"{counted(len(runs), 'run')} of {_names(methods)} {_with(runs[0])}."
    (best, first), (worst, last) = ranked[0], ranked[-1]
    seeds = {len(each.runs) for each in methods}
    over = f", each the mean of {max(seeds)} seeds" if len(seeds) == 1 and max(seeds) > 1 else ""
    if best - worst < _APART:
        return (
            f"{_names(methods)} ended between {text_format.percent(worst)} and {text_format.percent(best)} "
            f"{_with(runs[0])}{over}."
        )
    verbs = ("kept", "fell to") if runs[0].attacked else ("reached", "came to")
    return (
        f"{first.name} {verbs[0]} {text_format.percent(best)} {_with(runs[0])}; {last.name} {verbs[1]} "
        f"{text_format.percent(worst)}{over}."
    )


def _methods(runs: Sequence[ReportedRun]) -> list[_Method]:
    grouped: dict[str, list[ReportedRun]] = {}
    for each in runs:
        name = ", ".join(values_of({key: value for key, value in each.cell.items() if key != _SEED}))
        grouped.setdefault(name or each.algorithm, []).append(each)
    return [_Method(name, own) for name, own in grouped.items()]


def _names(methods: Sequence[_Method]) -> str:
    names = [each.name for each in methods]
    if len(names) > 4:
        return f"{names[0]}, {names[1]} and {len(names) - 2} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _with(run: ReportedRun) -> str:
    subject = run.audit.subject
    if run.attacked:
        share = f"{100 * subject.attackers / subject.clients:.3g}\N{NO-BREAK SPACE}%"
        return f"with {share} of {subject.clients:,} clients malicious"
    return f"with {counted(subject.clients, 'client')}"


def _privacy(run: ReportedRun) -> str:
    audit = run.audit
    if audit.subject.is_plain:
        return "sums were added up in the open"
    totals = f"the server saw {counted(len(audit.releases), 'total')}"
    if audit.subject.insecure_seed is not None:
        return f"{totals}, and anyone with the insecure_seed could see everything"
    seen = f"{totals} and no client's own vector"
    epsilon = audit.guarantee.epsilon
    return seen if epsilon is None else f"{seen}, at an epsilon of {text_format.short(epsilon)}"


def figures(runs: Sequence[ReportedRun]) -> tuple[KeyFigure, ...]:
    """Return the report's key figures. Of several runs, the most accurate one gives accuracy and bytes."""
    best = max(runs, key=lambda each: each.accuracy or -1.0)
    of = f"{best.title}; " if len(runs) > 1 else ""
    released = sum(len(each.audit.releases) for each in runs)
    asked = sum(len(each.sums) for each in runs)
    return (
        *_results(best, of),
        KeyFigure("Sums released", f"{released:,}", f"of {asked:,} that were asked"),
        _epsilon(runs),
        *_sent(best, of),
        _integrity(runs),
    )


def _results(best: ReportedRun, of: str) -> list[KeyFigure]:
    if best.headline is None and best.audit.subject.done:
        return []
    if (accuracy := best.accuracy) is None:
        return [KeyFigure("Loss", text_format.plain(best.final("pooled_loss")), of.removesuffix("; "))]
    name = MEASURES.get(best.headline or "", "")
    name = f"{name[:1].lower()}{name[1:]}"
    if not best.observes_clients:
        name = f"{name}, over all their samples"
    found = [KeyFigure("Accuracy", text_format.percent(accuracy), f"{of}{name}")]
    if best.observes_clients:
        worst = text_format.percent(best.final("worst_tenth"))
        found.append(KeyFigure("Worst tenth", worst, f"{of}mean accuracy of these clients"))
    return found


def _sent(best: ReportedRun, of: str) -> list[KeyFigure]:
    sent = best.audit.traffic
    if sent is None or not sent.up:
        return []
    remark = f"{of}plain FedAvg: {text_format.size(sent.fedavg_up)}"
    return [KeyFigure("Sent by a client", text_format.size(sent.up_per_client), remark)]


def _epsilon(runs: Sequence[ReportedRun]) -> KeyFigure:
    """Return the figure of the largest epsilon of a run, over all of its sums; "none" if a run has none."""
    audits = [each.audit for each in runs]
    without = next((each for each in audits if effective_epsilon(each) is None), None)
    if without is not None:
        return KeyFigure("Epsilon", "none", exposed(without) or without.guarantee.why)
    most = max(audits, key=lambda each: effective_epsilon(each) or 0.0).guarantee
    strength = Strength.of(most.epsilon).value
    remark = f"of all sums together, at a delta of {text_format.delta(most.delta)}: {strength} protection"
    return KeyFigure("Epsilon", text_format.short(most.epsilon), remark)


def _integrity(runs: Sequence[ReportedRun]) -> KeyFigure:
    if broken := [each for each in runs if not each.audit.intact]:
        return KeyFigure("Records", "altered", f"in {counted(len(broken), 'run')}: see below")
    if all(each.audit.integrity.verdict is Verdict.AUTHENTICATED for each in runs):
        remark = "signed with the server's key that the reader named"
        return KeyFigure("Records", str(Verdict.AUTHENTICATED), remark)
    old = any(each.audit.integrity.files is None for each in runs)
    why = "there is no manifest" if old else "no server's key was named to compare with"
    return KeyFigure("Records", str(Verdict.CONSISTENT), why)
