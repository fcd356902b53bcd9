"""Clients' machines that drop out where they are told to: they neither hear nor answer that message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.errors import SERVER
from secagg.events import ClientStep
from secagg.local import Stage
from secagg.testing.seeded import InsecureRepeatableClient
from secagg.thresholds import Trust
from sims.runtime.tampering import InsecureRepeatableTamperingClient, Tamper, TamperingClient

_STAGES: Final[dict[type[m.Message], Stage]] = {
    m.Invitation: Stage.ADVERTISE,
    m.KeyList: Stage.SHARE,
    m.Neighbours: Stage.SHARE,
    m.Query: Stage.MASK,
    m.Confirmations: Stage.REVEAL,
}


class Vanished(Exception):
    """The client is gone, in the midst of everything and without a word."""


class _Mortal(ClientMachine):
    """`doomed` says whether the client is to be gone from a stage on."""

    def __init__(self, *, doomed: Callable[[Stage], bool], **settings: Any) -> None:
        super().__init__(**settings)
        self._doomed = doomed
        self._stage_of_survivors = Stage.CONFIRM if self._policy.trust is Trust.MALICIOUS else Stage.REVEAL

    def receive(self, frame: bytes) -> ClientStep:
        kind = m.message_type(frame, sender=SERVER)
        stage = self._stage_of_survivors if kind is m.Survivors else _STAGES.get(kind)
        if stage is not None and self._doomed(stage):
            raise Vanished
        return super().receive(frame)


class _MortalClient(_Mortal):
    pass


class _MortalTampering(_Mortal, TamperingClient):
    pass


class _MortalRepeatable(_Mortal, InsecureRepeatableClient):
    pass


class _MortalRepeatableTampering(_Mortal, InsecureRepeatableTamperingClient):
    pass


def make_client(*, tamper: Tamper | None, seed: bytes | None, number: int, **settings: Any) -> ClientMachine:
    """A machine like that of `sims.runtime.secure` in session `number`, but mortal."""
    more: dict[str, Any] = {} if tamper is None else {"tamper": tamper}
    if seed is None:
        return (_MortalClient if tamper is None else _MortalTampering)(**settings, **more)
    kind = _MortalRepeatable if tamper is None else _MortalRepeatableTampering
    return kind(seed=seed + number.to_bytes(8, "big"), rounding=seed, **settings, **more)
