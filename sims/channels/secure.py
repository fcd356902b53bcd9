"""Sums through the real machines, all of them in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from secagg.keys import Identity
from secagg.local import LocalSession, local_machines
from secagg.testing.seeded import InsecureRepeatableClient, InsecureSeededServer, seeded_identity
from sims.channels.channel import Plan, SessionChannel
from sims.channels.setting import Setting


def secure_sum(algorithm: AnyAlgorithm, learners: Mapping[int, Learner], setting: Setting) -> SessionChannel:
    """A channel whose server machine sees random residues and totals, and nothing else."""
    return SessionChannel(algorithm, learners, setting, SecureSessions(tuple(learners), setting))


class SecureSessions:
    """Makes one session after another of clients that stay who they are."""

    def __init__(self, enrolled: tuple[int, ...], setting: Setting) -> None:
        self._enrolled = enrolled
        self._identity = _identities(setting.insecure_seed)

    def __call__(self, plan: Plan) -> LocalSession:
        setting = plan.setting
        server, clients = local_machines(
            table=plan.table,
            trust=setting.trust,
            members=plan.members,
            corrupt=setting.corrupt,
            dropout=setting.dropout,
            sums=setting.sums,
            memories=plan.memories,
            max_rho=setting.max_rho,
            adjacency=setting.adjacency,
            unnoised_sums=setting.unnoised_sums,
            enrolled=self._enrolled,
            make_identity=self._identity,
            **_seeded(plan),
        )
        return LocalSession(server, clients, plan.answer, absent=plan.absent, listener=plan.listener)


def _identities(seed: bytes | None) -> Callable[[int], Identity]:
    """One for every member, whichever session asks for it."""
    if seed is not None:
        return partial(seeded_identity, seed)
    return cache(lambda _member: Identity.generate())


def _seeded(plan: Plan) -> dict[str, Any]:
    """What makes a session repeatable; without a seed, nothing."""
    seed = plan.setting.insecure_seed
    if seed is None:
        return {}
    own = seed + plan.number.to_bytes(8, "big")
    return {
        "make_server": partial(InsecureSeededServer, seed=own),
        "make_client": partial(InsecureRepeatableClient, seed=own, rounding=seed),
    }
