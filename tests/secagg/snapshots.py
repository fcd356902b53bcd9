"""Independent copies of machines in the midst of a session: to try many things from one place.

A production machine refuses to be copied, because a copy uses one-time secrets a second time.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np

from secagg.admission_and_attendance import Admission, Attendance
from secagg.client import ClientMachine
from secagg.client_memory import VolatileMemory
from secagg.convictions import Convictions
from secagg.dealt_shares import DealtShares
from secagg.deposits import Deposits
from secagg.server import ServerMachine
from secagg.session_secrets import Vault
from secagg.share_envelopes import EnvelopeCipher
from secagg.share_exchange import ShareExchange
from secagg.sum_group_rules import Agenda, GroupBook, _Group
from secagg.sum_unmasking import Tally

Machine = TypeVar("Machine", ClientMachine, ServerMachine)

# What changes during a session. All else is immutable and shared; copies of a seeded machine also share the
# stream they draw from.
_CHANGING: Final = (
    ClientMachine, ServerMachine, Vault, GroupBook, _Group, VolatileMemory, Admission, Agenda,
    Attendance, Tally, DealtShares, Deposits, Convictions, ShareExchange, EnvelopeCipher,
)  # fmt: skip


def insecure_copy(machine: Machine) -> Machine:
    """A machine in the same state that goes its own way from here; its memory is copied with it."""
    copied: Machine = _copied(machine, {})
    return copied


def _copied(value: Any, done: dict[int, Any]) -> Any:
    """`value` with everything in it that can change; `done` keeps two references to one object together."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, _CHANGING):
        done[id(value)] = new = object.__new__(type(value))
        vars(new).update((name, _copied(part, done)) for name, part in vars(value).items())
        return new
    if isinstance(value, dict):
        pairs = value.copy()
        for key, part in value.items():
            pairs[key] = _copied(part, done)
        return pairs
    if type(value) is tuple:  # named ones hold nothing that changes
        return tuple(_copied(part, done) for part in value)
    return value.copy() if isinstance(value, (list, set, np.ndarray)) else value
