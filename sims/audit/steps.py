"""How many sums of a group rounds came to: Weiszfeld steps, halvings, whatever is about the same vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sims.audit.audit import CutShort, GroupSteps, Kind
from sims.audit.evidence import Evidence
from sims.audit.records import Entry, Records


def groups(evidence: Evidence, kinds: Iterable[Kind], records: Records) -> tuple[GroupSteps, ...]:
    """Of groups with more than one sum; a single one is released, or its round fails."""
    members: dict[str, list[Kind]] = {}
    for kind in kinds:
        if kind.times is not None and not kind.extra:
            members.setdefault(kind.group, []).append(kind)
    planned = {name: sum(kind.times or 0 for kind in own) for name, own in members.items()}
    return tuple(
        _group(name, planned[name], _rounds({kind.kind for kind in own}, records), evidence)
        for name, own in members.items()
        if planned[name] > 1
    )


def _rounds(kinds: set[str], records: Records) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in records.entries:
        if entry.kind in kinds and entry.logged is not None:
            found.setdefault(entry.round, []).append(entry)
    return found


def _group(name: str, planned: int, rounds: dict[int, list[Entry]], evidence: Evidence) -> GroupSteps:
    achieved = {number: sum(each.contributors is not None for each in own) for number, own in rounds.items()}
    return GroupSteps(
        group=name,
        planned=planned,
        rounds=dict(sorted(Counter(achieved.values()).items(), reverse=True)),
        cut_short=tuple(_cut_short(rounds, achieved, evidence)),
    )


def _cut_short(
    rounds: dict[int, list[Entry]], achieved: dict[int, int], evidence: Evidence
) -> Iterator[CutShort]:
    """Rounds that had to stop: others may take fewer steps as they came close enough."""
    given_up = {row["round"]: row for row in evidence.metrics if not row.get("completed", True)}
    for number, own in rounds.items():
        failures = [entry.logged.failure for entry in own if entry.logged is not None]
        why = next((failure for failure in failures if failure is not None), None)
        if why is not None:
            lost = ", and the round was given up" if number in given_up else ""
            yield CutShort(round=number, steps=achieved[number], why=why + lost)
