"""Runs a session in one process: the real client and server state machines exchange frames in memory.

Use it for simulations, for tests, and for sums that need no network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final, TypeAlias

from numpy.typing import ArrayLike

from secagg import events
from secagg.client import ClientMachine
from secagg.client_memory import Memory, VolatileMemory
from secagg.differencing_rules import ContentOf, SetLog, whole_payload
from secagg.errors import InputError, ParameterError, PeerError, StateError, UnchangedValues
from secagg.events import Asked
from secagg.identity_registry import Registry
from secagg.keys import Identity
from secagg.ledger import ServerLedger
from secagg.machine_hooks import CLIENT_DEFAULTS, SERVER_DEFAULTS, ClientHooks, ServerHooks
from secagg.noise.zcdp_cost import Adjacency
from secagg.policy import Policy
from secagg.self_and_pair_masks import Expander
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import Table, Total
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust


class Stage(Enum):
    """A stage of the protocol. A client that is absent in a stage receives and sends nothing in it.

    >>> [stage.value for stage in Stage]
    ['advertise', 'share', 'deposit', 'mask', 'confirm', 'reveal']
    """

    ADVERTISE = "advertise"
    SHARE = "share"
    DEPOSIT = "deposit"
    MASK = "mask"
    CONFIRM = "confirm"
    REVEAL = "reveal"


AnswerFunction: TypeAlias = Callable[[int, Asked], Mapping[str, ArrayLike]]
AnswerOrDecline: TypeAlias = Callable[[int, Asked], Mapping[str, ArrayLike] | None]  # None: it declines
Prepare: TypeAlias = Callable[[Mapping[int, Asked]], None]  # called with all queries, before any answer
Listener: TypeAlias = Callable[[int, events.ClientEvent], None]  # (member, event of its machine)
Absent: TypeAlias = Callable[[int, Stage, int], bool]  # (member, stage, sum index or -1 in set-up)
Observer: TypeAlias = Callable[[int, bytes], None]  # (sender, frame), for each frame that the server receives

STAGE_OF: Final = {
    ServerState.INVITING: Stage.ADVERTISE,
    ServerState.SHARING: Stage.SHARE,
    ServerState.DEPOSITING: Stage.DEPOSIT,
    ServerState.MASKING: Stage.MASK,
    ServerState.CONFIRMING: Stage.CONFIRM,
    ServerState.UNMASKING: Stage.REVEAL,
}


def nobody_absent(_member: int, _stage: Stage, _sum_index: int) -> bool:
    return False


def local_machines(
    *,
    table: Table,
    params: SessionParams,
    members: Collection[int],
    expander: Expander | None = None,
    memories: Mapping[int, Memory] | None = None,
    max_rho: float | None = None,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    unnoised_sums: int | None = None,
    min_difference: int = 0,
    static: Collection[str] = (),
    content_of: ContentOf = whole_payload,
    history: SetLog | None = None,
    barred: Collection[int] = (),
    enrolled: Collection[int] | None = None,
    server_hooks: ServerHooks = SERVER_DEFAULTS,
    client_hooks: Callable[[int], ClientHooks] = lambda _member: CLIENT_DEFAULTS,
    make_identity: Callable[[int], Identity] = lambda _member: Identity.generate(),
) -> tuple[ServerMachine, dict[int, ClientMachine]]:
    """Create a server and one client per member id, with policies and identities that fit `params`.

    `max_cohort` of `params` is replaced by the number of members. `memories` maps each member to what its
    client remembers of earlier sessions, such as a ledger; by default, nothing. `max_rho` is each client's
    zCDP limit. `unnoised_sums`, the most sums without noise, is by default 0 if `max_rho` is given, and
    otherwise all sums of the session. `enrolled` are the ids in the registry, by default the members. If
    memories are reused, `enrolled` and `make_identity` must give the same registry in every session. `Policy`
    explains `adjacency` and `min_difference`, `ClientMachine` explains `static` and `content_of`. If clients
    compare members by these, a ring names them. `history` has the survivors of earlier sums, and `barred` the
    ids of clients that lied before, as the server remembers them.

    Returns the server, and the clients by member id, both for a `LocalSession`. Raises `ParameterError` or
    `SpecError` if no session is possible with these arguments.

    >>> table = Table({"mean": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(9.0)),))})
    >>> server, clients = local_machines(
    ...     table=table, params=SessionParams(trust="curious_server", corrupt=1), members=[4, 5, 6]
    ... )
    >>> sorted(clients)
    [4, 5, 6]
    """
    enrolled, sums = members if enrolled is None else enrolled, params.sums
    _check_members(members, enrolled, memories, params)
    named = params.name_members or bool(static) or min_difference > 0
    params = replace(params, max_cohort=len(members), name_members=named)
    policy = Policy(
        trust=params.trust,
        corrupt=params.corrupt,
        min_cohort=params.min_cohort,
        max_cohort=params.max_cohort,
        min_contributors=params.min_contributors,
        max_sums=sums,
        unnoised_sums=_unnoised(sums, max_rho) if unnoised_sums is None else unnoised_sums,
        max_rho=max_rho,
        adjacency=adjacency,
        min_difference=min_difference,
        key_agreement=params.key_agreement,
    )
    identities, registry = _identities(params.trust, enrolled, make_identity)
    server = ServerMachine(
        table=table,
        params=params,
        registry=registry,
        expander=expander,
        history=history,
        content_of=content_of,
        barred=barred,
        hooks=server_hooks,
    )
    clients = {
        member: ClientMachine(
            member=member,
            table=table,
            policy=policy,
            memory=VolatileMemory() if memories is None else memories[member],
            identity=identities.get(member),
            registry=registry,
            static=static,
            content_of=content_of,
            hooks=client_hooks(member),
        )
        for member in members
    }
    return server, clients


def _check_members(
    members: Collection[int],
    enrolled: Collection[int],
    memories: Mapping[int, Memory] | None,
    params: SessionParams,
) -> None:
    if not set(members) <= set(enrolled):
        raise ParameterError("every member must be enrolled")
    if memories is not None and not set(members) <= set(memories):
        raise ParameterError("every member needs a memory, or none does")
    if len(set(members)) < len(members):
        raise ParameterError("every member needs an id of its own")
    if len(members) < params.corrupt + 2:
        raise ParameterError(
            f"{len(members)} clients with {params.corrupt} colluders: a total could show one honest input"
        )


def _unnoised(sums: int, max_rho: float | None) -> int:
    return sums if max_rho is None else 0


def _identities(
    trust: Trust, members: Iterable[int], make: Callable[[int], Identity]
) -> tuple[dict[int, Identity], Registry | None]:
    if trust is Trust.CURIOUS:
        return {}, None
    identities = {member: make(member) for member in members}
    return identities, Registry(0, {k: identity.public for k, identity in identities.items()})


class LocalClients:
    """Runs the machines of some clients, by id: delivers frames to them and returns their replies.

    `answer` and `listener` are as for `LocalSession`. `on_refusal(member, error)` is called when a client
    refuses a frame or a query. It then leaves, or, if its values are `UnchangedValues`, declines to answer.
    """

    def __init__(
        self,
        machines: Mapping[int, ClientMachine],
        answer: AnswerOrDecline,
        *,
        listener: Listener | None,
        on_refusal: Callable[[int, PeerError], None],
    ) -> None:
        self._machines = machines
        self._answer = answer
        self._listener = listener
        self._on_refusal = on_refusal
        self.clipped: dict[tuple[int, int], Mapping[str, float]] = {}  # (member, sum) -> factors

    def has_left(self, member: int) -> bool:
        return self._machines[member].state in (ClientState.FAILED, ClientState.ENDED)

    def receive(self, member: int, frame: bytes, asked: dict[int, Asked]) -> tuple[bytes, ...]:
        """Return a client's replies to a frame; a `Leave` if it refuses it. Add an `Asked` to `asked`."""
        try:
            step: events.ClientStep = self._machines[member].receive(frame)
        except PeerError as error:
            return self._refuse(member, error)
        for event in step.events:
            if self._listener is not None:
                self._listener(member, event)
            if isinstance(event, Asked):
                asked[member] = event
        return step.frames

    def reply(self, member: int, asked: Asked) -> tuple[bytes, ...]:
        """Return the frame with one client's masked values or, if it does not answer the query, the frame by
        which it declines or leaves. Raises `InputError` if the values do not match the spec."""
        client = self._machines[member]
        try:
            values = self._answer(member, asked)
            if values is None:
                return (client.decline(asked.sum_index),)
            answer = client.answer(asked.sum_index, values)
        except InputError as error:
            raise InputError(f"client {member}: {error}") from None
        except UnchangedValues as error:
            self._on_refusal(member, error)
            return (client.decline(asked.sum_index),)
        except PeerError as error:
            return self._refuse(member, error)
        if answer.clipped:
            self.clipped[member, asked.sum_index] = answer.clipped
        return (answer.frame,)

    def _refuse(self, member: int, error: PeerError) -> tuple[bytes, ...]:
        self._on_refusal(member, error)
        return (self._machines[member].leave(),)

    def leave(self) -> None:
        for client in self._machines.values():
            client.leave()


class LocalSession:
    """Runs one server and its clients in memory, stage by stage.

    `answer(member, asked)` returns the values of one client by part name, or None if it declines.
    `absent(member, stage, sum_index)` returns whether the client is absent (`sum_index` is -1 in set-up).
    `observer(sender, frame)` is called for each frame to the server, `listener(member, event)` for each event
    of a client, and `prepare`, before any answer, with all `Asked` events by client. `ledger` records events.

    >>> table = Table({"mean": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(9.0)),))})
    >>> server, clients = local_machines(
    ...     table=table, params=SessionParams(trust="curious_server", corrupt=1), members=[4, 5, 6]
    ... )
    >>> session = LocalSession(server, clients, lambda member, asked: {"x": [float(member)]})
    >>> session.open()
    >>> total = session.ask("mean", b"what the server broadcasts", round_number=0)
    >>> total["x"].round(6), total.count
    (array([15.]), 3)
    >>> session.end()
    """

    def __init__(
        self,
        server: ServerMachine,
        clients: Mapping[int, ClientMachine],
        answer: AnswerOrDecline,
        *,
        absent: Absent = nobody_absent,
        observer: Observer | None = None,
        ledger: ServerLedger | None = None,
        listener: Listener | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self._server = server
        self._clients = clients
        self._exchange = LocalClients(clients, answer, listener=listener, on_refusal=self._refused)
        self._absent = absent
        self._observer = observer
        self._ledger = ledger
        self._prepare = prepare
        self._opened = False
        self._sum_index = -1
        self._stage = Stage.ADVERTISE  # frames that are sent between two stages count for the earlier one
        self.events: list[events.ServerEvent] = []
        self.refusals: dict[int, PeerError] = {}  # member -> the last error for which it left or declined
        self._refusal: PeerError | None = None  # the last refusal in the current sum
        self.invited = 0  # clients that were asked for the last sum
        self.bytes_up: Counter[Stage] = Counter()
        self.bytes_down: Counter[Stage] = Counter()
        self.frames_up: Counter[Stage] = Counter()
        self.frames_down: Counter[Stage] = Counter()

    def open(self) -> None:
        """Exchange clients' keys and shares. Call this once. Raises `SumFailed` if too few take part."""
        if self._opened:
            raise StateError("the session was opened before")
        self._opened = True
        self._send((events.Outgoing(self._receivers(), self._server.invitation),))
        self._act(self._server.close_stage())
        while self._server.state in (ServerState.SHARING, ServerState.DEPOSITING):
            self._act(self._server.close_stage())
        self._raise_failure()

    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        """Ask for a sum of `kind`; return its total. Raises `SumFailed`, or `InputError` for bad values."""
        step = self._server.ask(kind, payload, round_number=round_number)
        self._sum_index += 1
        self._refusal = None
        self.invited = len(step.outgoing[0].receivers)
        try:
            if self._ledger is not None:
                self._ledger.note_asked(step.outgoing[0].frame, self._server.table)
            self._act(step)
        except BaseException:  # a client could not answer: its vector does not fit, or its code failed
            self._act(self._server.abandon())
            raise
        while self._server.state is not ServerState.READY:
            self._act(self._server.close_stage())
        self._raise_failure()
        return next(e.total for e in reversed(self.events) if isinstance(e, events.SumReleased))

    @property
    def contributors(self) -> tuple[int, ...]:
        """The ids of the clients whose values are in the last released total; empty before the first."""
        released = (event for event in reversed(self.events) if isinstance(event, events.SumReleased))
        return next((event.contributors for event in released), ())

    @property
    def clipped(self) -> Mapping[tuple[int, int], Mapping[str, float]]:
        """By (member, sum), the factors by which the parts of an answer were shortened."""
        return self._exchange.clipped

    def end(self) -> None:
        """End the session at the server and at all clients, also at those that are simulated as absent."""
        self._server.end()
        self._exchange.leave()

    def _receivers(self) -> tuple[int, ...]:
        """Return the clients that are invited."""
        return tuple(self._clients)

    def _act(self, step: events.ServerStep) -> None:
        self._note(step.events)
        self._send(step.outgoing)

    def _note(self, happened: Iterable[events.ServerEvent]) -> None:
        """Write events to the server's ledger, if there is one, then append them to the list `events`."""
        for event in happened:
            if self._ledger is not None:
                self._ledger.note(event)
            self.events.append(event)

    def _send(self, outgoing: Iterable[events.Outgoing]) -> None:
        """Deliver frames and the replies to them. `prepare` is called with all queries before any answer."""
        stage = self._stage = STAGE_OF.get(self._server.state, self._stage)
        asked: dict[int, Asked] = {}
        for packet in outgoing:
            for member in packet.receivers:
                if self._exchange.has_left(member):
                    continue
                if not self._absent(member, stage, self._sum_index):
                    self.bytes_down[stage] += len(packet.frame)
                    self.frames_down[stage] += 1
                    self._forward(member, self._exchange.receive(member, packet.frame, asked), stage)
        if asked and self._prepare is not None:
            self._prepare(asked)
        for member, each in asked.items():
            self._forward(member, self._exchange.reply(member, each), stage)

    def _forward(self, member: int, frames: Iterable[bytes], stage: Stage) -> None:
        for frame in frames:
            self.bytes_up[stage] += len(frame)
            self.frames_up[stage] += 1
            if self._observer is not None:
                self._observer(member, frame)
            self._note(self._server.receive(member, frame))

    def _refused(self, member: int, error: PeerError) -> None:
        self.refusals[member] = self._refusal = error

    def _raise_failure(self) -> None:
        """Raise the error of the last aborted sum or failed set-up, unless a total was released after it."""
        for event in reversed(self.events):
            if isinstance(event, events.SumReleased):
                return
            if isinstance(event, (events.SumAborted, events.SessionFailed)):
                raise event.error from self._refusal
