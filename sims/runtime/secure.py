"""Secure sums in one process, which runs the real state machines of the server and of all clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.query_encoding import query_content
from secagg.client import ClientMachine
from secagg.errors import Departed, PeerError, UnchangedValues
from secagg.events import ClientEvent, Confirmed, Excluded, ServerEvent, SessionReady
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_identity
from secagg.keys import Identity
from secagg.local_session import LocalSession, local_machines
from secagg.machine_hooks import ServerHooks
from secagg.messages import MaskedInput, Reveal, message_type
from secagg.server import ServerMachine
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.coordination.transport import SessionGraph, SumStats, rows_of
from sims.records.sum_records import Exclusion, Refusal
from sims.runtime.insecure_seed_hooks import client_hooks, server_hooks
from sims.runtime.session_channel import SessionChannel, SimulatedSessionPlan
from sims.runtime.sum_and_dropout_settings import Setting


def secure_sum(algorithm: AnyAlgorithm, learners: Mapping[int, Learner], setting: Setting) -> SessionChannel:
    """Return a channel that computes secure sums: the server sees only masked values and totals.
    Raise `ParameterError` if the algorithm cannot run with these learners (by client id) or this setting.

    >>> from protocols.fedavg import FedAvg
    >>> from protocols.quadratic_learner import QuadraticLearner
    >>> from protocols.run import Run
    >>> algorithm = FedAvg(dim=2, clients=3, clip=10.0)
    >>> learners = {k: QuadraticLearner(np.array([1.0, float(k)])) for k in range(3)}
    >>> channel = secure_sum(algorithm, learners, Setting(trust="malicious_server"))
    >>> Run(algorithm, channel, algorithm.start(np.zeros(2))).round().clients
    3
    >>> channel.close()
    """
    return SessionChannel(algorithm, learners, setting, SecureSessions(tuple(learners), setting))


class ObservedSession(LocalSession):
    """A secure session in one process. `stats` counts a sum's masked inputs, reveal messages and refusals."""

    is_plain = False

    def __init__(
        self, server: ServerMachine, clients: Mapping[int, ClientMachine], plan: SimulatedSessionPlan
    ) -> None:
        super().__init__(
            server,
            clients,
            plan.answer,
            absent=plan.absent,
            observer=self._count,
            ledger=plan.setting.ledger,
            listener=self._hear,
            prepare=plan.prepare,
        )
        self._left = plan.left
        self._plan = plan
        self.informed: set[int] = set()
        self.stats = SumStats()

    def _count(self, member: int, frame: bytes) -> None:
        kind = message_type(frame, sender=member)
        self.stats.masked += kind is MaskedInput
        self.stats.revealed += kind is Reveal

    def _hear(self, member: int, event: ClientEvent) -> None:
        if isinstance(event, Confirmed):
            self.informed.add(member)
        self._plan.listener(member, event)

    def _refused(self, member: int, error: PeerError) -> None:
        if not isinstance(error, UnchangedValues):  # such a client declines, and stays
            self.stats.refusals.append(Refusal.of(member, error))
        super()._refused(member, error)

    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        before = self._sum_index
        self.informed = set()
        for member in self._left:  # In a network, the server would have lost these connections by now.
            self._note(self._server.drop(member))
        try:
            return super().ask(kind, payload, round_number=round_number)
        finally:
            if self._sum_index > before:
                self.stats.index, self.stats.invited = self._sum_index, self.invited
                self.stats.around = rows_of(self._server.around)

    def _note(self, happened: Iterable[ServerEvent]) -> None:
        for event in (events := tuple(happened)):
            if isinstance(event, Excluded) and not isinstance(event.error, Departed):
                self.stats.exclusions.append(Exclusion.of(event))
        super()._note(events)

    @property
    def graph(self) -> SessionGraph | None:
        for event in self.events:
            if isinstance(event, SessionReady):
                return SessionGraph.of(event, len(self._server.advertised))
        return None


class SecureSessions:
    """Makes secure sessions in this process. A client has the same signing key in all of them."""

    def __init__(self, enrolled: tuple[int, ...], setting: Setting) -> None:
        self._enrolled = enrolled
        self._identity = _identities(setting.insecure_seed)

    def __call__(self, plan: SimulatedSessionPlan) -> ObservedSession:
        setting = plan.setting
        server, clients = local_machines(
            table=plan.table,
            params=setting.params,
            members=plan.members,
            memories=plan.memories,
            max_rho=setting.max_rho,
            adjacency=setting.adjacency,
            unnoised_sums=setting.unnoised_sums,
            min_difference=setting.min_difference,
            content_of=query_content,
            history=plan.history,
            barred=setting.barred,
            enrolled=self._enrolled,
            make_identity=self._identity,
            server_hooks=server_hooks(seed=setting.insecure_seed, number=plan.number),
            client_hooks=lambda member: client_hooks(
                member, seed=setting.insecure_seed, number=plan.number, tamper=setting.tamper.get(member)
            ),
        )
        return ObservedSession(server, clients, plan)


def _identities(seed: bytes | None) -> Callable[[int], Identity]:
    """Return a function from client id to signing key, derived from `seed` or else drawn once and kept."""
    if seed is not None:
        return partial(seeded_identity, seed)
    return cache(lambda _member: Identity.generate())


def server_machine(
    plan: SimulatedSessionPlan, keys: Mapping[int, bytes], hooks: ServerHooks, *, version: int = 0
) -> ServerMachine:
    """Return the server's protocol state machine for a session with clients in other processes. `keys` has
    their public keys by id, in a registry of this `version`."""
    setting, policy = plan.setting, plan.policy
    return ServerMachine(
        table=plan.table,
        params=replace(
            setting.params,
            min_cohort=policy.min_cohort,
            max_cohort=policy.max_cohort,
            min_contributors=policy.min_contributors,
        ),
        registry=Registry(version, keys) if policy.trust is Trust.MALICIOUS else None,
        history=plan.history,
        content_of=query_content,
        barred=setting.barred,
        hooks=hooks,
    )
