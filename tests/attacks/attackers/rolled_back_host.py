"""Rolled-back host: a process that stores its client's machine, and is started again from an older state.

An engine whose nodes run one message at a time stores what an app wants to keep: before the message, or after
the reply was sent. If the node crashes in between, or its operator restores a copy, the machine is again what
it was before it revealed its shares. Asked a second time, with the victim dropped, it reveals the other kind.
Machines refuse to be pickled. The host here does it nevertheless, and is for tests only.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Collection, Iterable
from typing import Any

from secagg.client import ClientMachine
from secagg.cohort_members import Cohort
from secagg.keys import OneTime
from tests.attacks.attackers.cheated_sum import CheatedSum, Vector
from tests.attacks.rig import Rig


class _Pickler(pickle.Pickler):
    """Pickles what refuses to be pickled, apart from what a process finds on its disk or in its code."""

    def __init__(self, file: io.BytesIO, outside: Collection[object]) -> None:
        super().__init__(file)
        self._outside = {id(each): number for number, each in enumerate(outside)}

    def persistent_id(self, obj: Any) -> int | None:
        return self._outside.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, OneTime):
            return copyreg.__newobj__, (type(obj),), obj.__dict__  # type: ignore[attr-defined]
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, outside: Iterable[object]) -> None:
        super().__init__(io.BytesIO(data))
        self._outside = list(outside)

    def persistent_load(self, pid: Any) -> object:
        return self._outside[pid]


class PicklingHost:
    """The process of one client, which can be rolled back. If `keeps_memory`, the client's ledger is on a
    disk that is not."""

    def __init__(self, rig: Rig, member: int, *, keeps_memory: bool) -> None:
        self._rig = rig
        self._member = member
        self._keeps_memory = keeps_memory
        self._saved = b""

    def save(self) -> None:
        file = io.BytesIO()
        _Pickler(file, self._outside).dump(self._machine)
        self._saved = file.getvalue()

    def roll_back(self) -> None:
        self._rig.machines[self._member] = _Unpickler(self._saved, self._outside).load()

    @property
    def _machine(self) -> ClientMachine:
        return self._rig.machines[self._member]

    @property
    def _outside(self) -> list[object]:
        machine = self._machine
        found: list[object] = [
            machine._hooks,
            machine._identity,
            machine._registry,
            machine._rules._content_of,
        ]
        found += [machine._table, machine._policy, machine._vault._random, machine._vault._encapsulate]
        return [each for each in found if each is not None] + [machine._memory] * self._keeps_memory


def rolled_back(rig: Rig, cohort: Cohort, victim: int, *, keeps_memory: bool) -> Vector | None:
    """The victim's vector, where the others' hosts are rolled back after they have revealed their shares."""
    rest = [member for member in cohort.ids if member != victim]
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    cheated.ask(cohort.ids)
    hosts = [PicklingHost(rig, member, keeps_memory=keeps_memory) for member in rest]
    for host in hosts:
        host.save()
    cheated.reveal(cohort.ids, cohort.ids)
    for host in hosts:
        host.roll_back()
    cheated.reveal(rest, rest)
    return cheated.vector(victim)


def restarted(rig: Rig, cohort: Cohort, victim: int) -> CheatedSum:
    """The same against processes that keep nothing but their ledger: each is restarted with a new machine.
    Returns the notes, before the second request."""
    cheated = CheatedSum(rig, cohort, rig.query(cohort, 0, cohort.ids))
    cheated.ask(cohort.ids)
    cheated.reveal(cohort.ids, cohort.ids)
    rig.restart(members=[member for member in cohort.ids if member != victim], seed=b"another process")
    return cheated
