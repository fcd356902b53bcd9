"""Sums through the real machines, all of them in this process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from secagg.local import LocalSession, local_machines
from secagg.testing.seeded import InsecureRepeatableClient, InsecureSeededServer, seeded_identity
from sims.channels.channel import Plan, SessionChannel
from sims.channels.setting import Setting

_MANY = 1 << 62


def secure_sum(algorithm: AnyAlgorithm, learners: Mapping[int, Learner], setting: Setting) -> SessionChannel:
    """A channel whose server machine sees random residues and totals, and nothing else."""
    return SessionChannel(algorithm, learners, setting, secure_session)


def secure_session(plan: Plan) -> LocalSession:
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
        unnoised_sums=_MANY,
        **_seeded(plan),
    )
    return LocalSession(server, clients, plan.answer, absent=plan.absent, listener=plan.listener)


def _seeded(plan: Plan) -> dict[str, Any]:
    """What makes a session repeatable; without a seed, nothing."""
    seed = plan.setting.insecure_seed
    if seed is None:
        return {}
    own = seed + plan.number.to_bytes(8, "big")
    return {
        "make_server": partial(InsecureSeededServer, seed=own),
        "make_client": partial(InsecureRepeatableClient, seed=own, rounding=seed),
        "make_identity": partial(seeded_identity, own),
    }
