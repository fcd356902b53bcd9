"""Clients' machines that drop out where they are told to: they neither hear nor answer that message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.local import Stage
from secagg.policy import Policy
from secagg.thresholds import Trust
from sims.runtime.machine_hooks import client_hooks
from sims.runtime.tampering import Tamper

_STAGES: Final[dict[type[m.Message], Stage]] = {
    m.Invitation: Stage.ADVERTISE,
    m.KeyList: Stage.SHARE,
    m.Neighbours: Stage.SHARE,
    m.Query: Stage.MASK,
    m.Confirmations: Stage.REVEAL,
}


class Vanished(Exception):
    """The client is gone, in the midst of everything and without a word."""


def make_client(
    *,
    member: int,
    policy: Policy,
    tamper: Tamper | None,
    seed: bytes | None,
    number: int,
    doomed: Callable[[Stage], bool],
    **settings: Any,
) -> ClientMachine:
    """A machine like that of `sims.runtime.secure` in session `number`.

    It drops out at the first stage for which `doomed` is true.
    """
    survivors = Stage.CONFIRM if policy.trust is Trust.MALICIOUS else Stage.REVEAL

    def on_message(kind: type[m.Message]) -> None:
        stage = survivors if kind is m.Survivors else _STAGES.get(kind)
        if stage is not None and doomed(stage):
            raise Vanished

    hooks = client_hooks(member, seed=seed, number=number, tamper=tamper)
    hooks = replace(hooks, on_message=on_message)
    return ClientMachine(member=member, policy=policy, hooks=hooks, **settings)
