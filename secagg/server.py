"""The server of one session as a state machine: it maps frames to frames and events. No sockets, no clock.

    events = server.receive(sender, frame)      # a client's frame never makes it raise
    step = server.close_stage()                 # called when the caller's deadline has passed
    step = server.ask(kind, payload, round_number=r)

A client that breaks the protocol is excluded. A late message is ignored. A client that sends nothing is a
drop-out. None of these stops the other clients. A restarted server does not know the old session id, so no
client reveals anything more for the old session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from secagg import errors, events
from secagg import messages as m
from secagg import server_setup_and_quorum_checks as quorum_checks
from secagg.admission_and_attendance import Admission, Attendance
from secagg.bitmap import PositionSet
from secagg.cohort_members import invitation_digest
from secagg.differencing_rules import ContentOf, SetLog, whole_payload
from secagg.events import Outgoing, ServerEvent, ServerStep
from secagg.identity_registry import Registry
from secagg.keys import verify
from secagg.machine_hooks import SERVER_DEFAULTS, ServerHooks
from secagg.message_records import Format, encode_signatures
from secagg.query_context import Question, query_digest
from secagg.repeated_query_roster import RepeatPlanner
from secagg.self_and_pair_masks import Expander, OneProcess
from secagg.session_params import SessionParams
from secagg.sum_group_rules import Agenda
from secagg.sum_spec import Table
from secagg.sum_unmasking import Tally
from secagg.transitions import COLLECTED, ServerState, check_collected, is_late
from secagg.trust_levels import MAX_COMPLETE, Trust, liars_around

NONCE_BYTES: Final = 32
_OVERHEAD: Final = 256
_S: Final = ServerState


class ServerMachine:
    """The server of one session with one cohort.

    Send `invitation` to all clients, and pass their frames to `receive`. `close_stage`, `ask`, `abandon` and
    `end` return frames to send and events, also about clients that break the protocol. The constructor raises
    `LocalError` if its parameters do not fit together. `now` is the Unix time, for registries that expire.
    `history`, earlier survivors, helps to find clients that accept a `content_of(kind, payload)` again.

    >>> table = Table({"mean": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(9.0)),))})
    >>> ServerMachine(table=table, params=SessionParams(trust="curious_server", corrupt=1, max_cohort=9))
    ServerMachine(state=inviting, next_sum=0)
    """

    def __init__(
        self,
        *,
        table: Table,
        params: SessionParams,
        registry: Registry | None = None,
        expander: Expander | None = None,
        now: int | None = None,
        history: SetLog | None = None,
        content_of: ContentOf = whole_payload,
        hooks: ServerHooks = SERVER_DEFAULTS,
    ) -> None:
        quorum_checks.check_session(table, params, registry, now)
        self._params = params
        self._hooks = hooks
        self._table = table
        self._expander = expander or OneProcess()
        self._registry = registry
        self._state = _S.INVITING
        self._attendance = Attendance()
        self._stranded: set[int] = set()
        self._unreported: list[int] = []  # stranded clients that no event has named yet
        self._agenda = Agenda(table, params.sums)
        self._repeats = RepeatPlanner(history or SetLog(), params, table=table, content_of=content_of)
        self.invitation = self._make_invitation()
        self._invited = self._context = invitation_digest(self.invitation)
        self._admission = Admission(
            Format(params.sums, signed=registry is not None, seeds=table.seeds),
            context=self._invited,
            registry=registry,
            most=params.max_cohort,
        )

    @cached_property
    def frame_limit(self) -> int:
        """An upper bound of the size, in bytes, of the frames that an honest client sends in any stage."""
        form = Format(self._params.sums, signed=True, seeds=self._table.seeds)
        vector = max(spec.packed_bytes for spec in self._table.values())
        envelopes = min(self._params.max_cohort, MAX_COMPLETE) * form.envelope_bytes
        return max(form.advert_bytes, envelopes, vector) + _OVERHEAD

    def _make_invitation(self) -> bytes:
        """Return the frame that invites all clients, with a new random nonce."""
        registry = self._registry.digest if self._registry else b""
        nonce = self._hooks.random(NONCE_BYTES)
        trust, table = str(self._params.trust), self._table.digest
        return m.Invitation(b"", trust, self._params.sums, table, registry, nonce).encode()

    def __repr__(self) -> str:
        return f"ServerMachine(state={self._state.value}, next_sum={self._agenda.next_sum})"

    # --- its state ---

    @property
    def state(self) -> ServerState:
        return self._state

    @property
    def table(self) -> Table:
        return self._table

    @property
    def sums_left(self) -> int:
        return self._agenda.sums_left

    @property
    def sums_asked(self) -> int:
        """The number of sums that were begun in this session, including failed ones."""
        return self._agenda.next_sum

    @property
    def advertised(self) -> tuple[int, ...]:
        """The ids of the clients that joined: the server has accepted their public keys."""
        return self._admission.advertised

    @property
    def members(self) -> tuple[int, ...]:
        """The ids of clients that can be asked: they dealt shares, stayed and keep enough ring neighbours."""
        away = self._attendance.gone | self._stranded
        return tuple(member for member in self._admission.shared if member not in away)

    @property
    def around(self) -> Counter[tuple[int, int]]:
        """How many clients revealed shares in the last sum, by (a, s): of the client and its neighbours, a
        were asked and s are in the total. The pair determines the size of the client's message."""
        graph, tally = self._topology.graph, self._tally
        asked, survived = graph.present_around(tally.question.roster), graph.present_around(tally.survivors)
        return Counter((asked[position], survived[position]) for position in tally.revealed)

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """The ids of clients yet to answer in this stage. Empty while clients join: anyone may answer."""
        return self._attendance.waiting_for

    # --- calls ---

    def receive(self, sender: int, frame: bytes) -> tuple[ServerEvent, ...]:
        """Process a frame of client `sender`. Return events, such as `Excluded` if the client breaks the
        protocol, `Late` if the stage of the frame is over, or `StageFull` if all answers have arrived."""
        if sender in self._attendance.gone:
            return ()
        try:
            message = m.decode(frame, sender=sender, limit=self.frame_limit)
            if isinstance(message, m.Leave):
                raise errors.Departed(sender, "left the session")
            if message.context != (self._invited if isinstance(message, m.Advertisement) else self._context):
                raise errors.WrongSession(sender, "a message of another session")
            if isinstance(message, m.Lost):
                return self._take_report(sender, message)
            if is_late(self._state, self._current_sum, message):
                return (events.Late(sender),)
            check_collected(self._state, self._current_sum, message, sender=sender)
            self._attendance.check(sender, self._state.value)
            self._collect(sender, message)
        except errors.PeerError as error:
            return (events.Excluded(sender, error), *self.drop(sender))
        self._attendance.answer(sender)
        if self._hooks.on_message is not None:
            self._hooks.on_message(sender, message)
        return self._full()

    def drop(self, member: int) -> tuple[ServerEvent, ...]:
        """Remove client `member`, which is lost. Return `StageFull` if the stage now waits for no client."""
        self._attendance.lose(member)
        if self._state is _S.INVITING:
            self._admission.withdraw(member)
        return self._full()

    def ask(self, kind: str, payload: bytes, *, round_number: int) -> ServerStep:
        """Begin a sum: return the query to send. Raises `LocalError` if the query is not possible now,
        `CohortChanged` if, in this round, a client left or a sum failed in the same group (sums of the same
        private vector), and `TooFewClients` if too few clients are left to ask."""
        if self._state is not _S.READY:
            raise errors.StateError(f"the server is {self._state.value}, not {_S.READY.value}")
        self._agenda.check(kind, payload, round_number)
        self._note_stranded()
        question, frame = self._make_question(kind, payload, round_number)
        self._agenda.note(question.query)
        graph, corrupt = self._topology.graph, self._params.corrupt
        self._tally = Tally(question, graph, corrupt=corrupt, expander=self._expander)
        self._enter(_S.MASKING, self._ids(question.roster))
        return ServerStep((self._to(question.roster, frame),), self._stranded_event())

    def close_stage(self) -> ServerStep:
        """End the current stage with the answers that have arrived. Return the frames of the next stage, and
        events, such as a released total or why there is none. Raises `StateError` if no stage is open."""
        closers = {
            _S.INVITING: self._close_inviting,
            _S.SHARING: self._close_sharing,
            _S.MASKING: self._close_masking,
            _S.CONFIRMING: self._close_confirming,
            _S.UNMASKING: self._close_unmasking,
        }
        if self._state not in closers:
            raise errors.StateError(f"there is no stage to close; the server is {self._state.value}")
        stage, missing = self._state, self.waiting_for
        try:
            step = closers[stage]()
        except errors.SumFailed as error:
            in_setup = stage in (_S.INVITING, _S.SHARING)
            step = self._fail(error) if in_setup else self._abort(error)
        absent = (events.Missing(missing, stage.value),) if missing else ()
        return ServerStep(step.outgoing, (*absent, *self._stranded_event(), *step.events))

    def abandon(self) -> ServerStep:
        """Abandon the current sum in any stage: nothing is released, and its group (sums of the same vector)
        has no more sums in this round. The session continues. Raises `StateError` if there is no sum."""
        if self._state not in (_S.MASKING, _S.CONFIRMING, _S.UNMASKING):
            raise errors.StateError(f"there is no sum to abandon; the server is {self._state.value}")
        return self._abort(errors.SumFailed("abandoned by the server's owner"))

    def end(self) -> ServerStep:
        """End the session. Return the farewell to the clients that are left, or nothing if it was over."""
        if self._state in (_S.ENDED, _S.FAILED):
            return ServerStep()
        receivers = self._attendance.here(self._admission.advertised)
        self._state = _S.ENDED
        return ServerStep((Outgoing(receivers, m.Farewell(self._invited).encode()),))

    # --- checks of each frame ---

    @property
    def _current_sum(self) -> int:
        return self._agenda.next_sum - 1

    def _full(self) -> tuple[ServerEvent, ...]:
        full = self._state in COLLECTED and self._attendance.is_full
        return (events.StageFull(),) if full else ()

    def _collect(self, sender: int, message: m.Message) -> None:
        match message:
            case m.Advertisement():
                self._admission.add_advert(sender, message)
            case m.Shares():
                self._admission.add_shares(sender, message, self._cohort, self._topology.graph)
            case m.MaskedInput():
                self._tally.add_input(self._cohort.position[sender], message.data)
            case m.Confirmation():
                self._add_confirmation(sender, message)
            case m.Reveal():
                self._tally.add_reveal(self._cohort.position[sender], message)

    def _add_confirmation(self, sender: int, message: m.Confirmation) -> None:
        assert self._registry is not None  # the consistency round exists only in signed sessions
        fields = self._tally.question.confirmed_fields(self._tally.survivors)
        verify(self._registry.members[sender], message.signature, "survivors", *fields, peer=sender)
        self._tally.confirmations[self._cohort.position[sender]] = message.signature

    def _take_report(self, sender: int, message: m.Lost) -> tuple[ServerEvent, ...]:
        """Record which dealers' encrypted shares `sender` could not open. Exclude each dealer that more
        clients have reported than may be corrupt. Return the events. Raises `PeerError` for a bad report."""
        if self._state in (_S.ENDED, _S.FAILED):
            return (events.Late(sender),)
        if self._state in (_S.INVITING, _S.SHARING):
            raise errors.OutOfOrder(sender, f"{type(message).__name__} while {self._state.value}")
        self._admission.add_lost(sender, message, self._cohort, self._topology.graph)
        happened: list[ServerEvent] = []
        liars = liars_around(self._params.corrupt, self._cohort.threshold)
        for dealer in self._admission.convicted(corrupt=liars):
            if dealer not in self._attendance.gone:
                error = errors.CorruptDealer(dealer, "its envelopes do not open", proven=True)
                happened += [events.Excluded(dealer, error), *self.drop(dealer)]
        return tuple(happened)

    # --- stages ---

    def _close_inviting(self) -> ServerStep:
        present = len(self._admission.advertised)
        self._topology = quorum_checks.topology_for(present, self._params, self._hooks.random)
        self._cohort, lists = self._admission.key_lists(self._topology, invitation=self.invitation)
        self._context = self._cohort.session
        self._enter(_S.SHARING, self._cohort.ids)
        outgoing = (Outgoing(self._attendance.here(packet.receivers), packet.frame) for packet in lists)
        return ServerStep(tuple(packet for packet in outgoing if packet.receivers))

    def _close_sharing(self) -> ServerStep:
        self._note_stranded()
        dealt, stranded = len(self._admission.shared), len(self._stranded)
        quorum_checks.check_dealt(dealt, stranded=stranded, least=self._topology.least)
        self._enter(_S.READY)
        graph = self._topology.graph
        outgoing = tuple(
            Outgoing((member,), m.Delivery(self._context, parcels).encode())
            for member in self.members
            if (parcels := self._admission.parcels_for(member, self._cohort, graph))
        )
        self._admission.forget_envelopes()
        ready = events.SessionReady(self._context, self.members, self._cohort.threshold, graph.neighbours)
        return ServerStep(outgoing, (*self._stranded_event(), ready))

    def _note_stranded(self) -> None:
        """On a ring, mark members with too few neighbours left: their masks could not be removed."""
        stranded = self._topology.stranded(PositionSet(self._positions(self.members)))
        self._unreported += sorted(self._cohort.ids[position] for position in stranded)
        self._stranded.update(self._unreported)

    def _stranded_event(self) -> tuple[ServerEvent, ...]:
        """Return a `Stranded` event with the clients marked by `_note_stranded` since the last one, or ()."""
        stranded, self._unreported = tuple(self._unreported), []
        return (events.Stranded(stranded),) if stranded else ()

    def _close_masking(self) -> ServerStep:
        survivors, question = self._tally.fix_survivors(), self._tally.question
        quorum_checks.check_survivors(survivors, self._tally, self._topology)
        ids = question.member_ids(survivors)
        sequences = self._repeats.confirm(question.query, ids, later=question.later_in_group)
        fixed = tuple(events.SurvivorsFixed(each, ids) for each in sequences)
        stage = _S.CONFIRMING if self._params.trust is Trust.MALICIOUS else _S.UNMASKING
        self._enter(stage, self._ids(survivors))
        frame = m.Survivors(self._context, question.sum_index, survivors.pack(self._cohort.size)).encode()
        return ServerStep((self._to(survivors, frame),), fixed)

    def _close_confirming(self) -> ServerStep:
        confirmations = self._tally.confirmations
        quorum_checks.check_enough(len(confirmations), "confirmed", self._cohort.threshold)
        signers = sorted(confirmations)
        blob = encode_signatures([(self._cohort.ids[p], confirmations[p]) for p in signers])
        self._enter(_S.UNMASKING, self._ids(signers))
        frame = m.Confirmations(self._context, self._tally.question.sum_index, blob).encode()
        return ServerStep((self._to(signers, frame),))

    def _close_unmasking(self) -> ServerStep:
        tally = self._tally
        quorum_checks.check_enough(len(tally.revealed), "revealed shares", self._cohort.threshold)
        total, wrong = tally.unmask()
        self._agenda.confirm(tally.question.query, tally.survivors, revealed=tally.revealed)
        self._repeats.release(tally.question.query, later=tally.question.later_in_group)
        self._enter(_S.READY)
        ids = tuple(sorted(self._ids(tally.survivors)))
        return ServerStep(events=(*wrong, events.SumReleased(tally.question.sum_index, total, ids)))

    # --- groups, failures and small helpers ---

    def _make_question(self, kind: str, payload: bytes, round_number: int) -> tuple[Question, bytes]:
        later, spec = self._agenda.later_roster(kind, round_number), self._table[kind]
        least = max(self._topology.least, spec.least_roster)
        chosen = self._repeats.roster(kind, payload, self.members, need=least) if later is None else ()
        roster = PositionSet(self._positions(chosen)) if later is None else later
        if self._ids(roster) & self._attendance.gone:
            self._agenda.close(kind, round_number)
            raise errors.CohortChanged("a client of this group has left; its last total stands")
        quorum_checks.check_enough(len(roster), "are left", least)
        bitmap = roster.pack(self._cohort.size)
        query = m.Query(self._context, self._agenda.next_sum, round_number, kind, bitmap, payload)
        frame = query.encode()
        return Question(self._cohort, spec, query, query_digest(frame), roster, later is not None), frame

    def _abort(self, error: errors.SumFailed) -> ServerStep:
        """Abort the sum: release nothing and close its group, but keep the session. Exclude each dealer that
        `error` proves corrupt, and all that it blames if they are few enough to be all corrupt."""
        question = self._tally.question
        self._agenda.close(question.query.kind, question.query.round)
        self._enter(_S.READY)
        happened: list[ServerEvent] = [events.SumAborted(question.sum_index, error)]
        if isinstance(error, errors.Unrecoverable):
            for dealer in error.dealers:
                excluded = dealer.proven or quorum_checks.few_suspects(error, self._params)
                if isinstance(dealer.peer, int) and excluded:
                    happened += [events.Excluded(dealer.peer, dealer), *self.drop(dealer.peer)]
        closed = m.GroupClosed(self._context, question.sum_index).encode()
        return ServerStep((self._to(question.roster, closed),), tuple(happened))

    def _fail(self, error: errors.SumFailed) -> ServerStep:
        outgoing = self.end().outgoing
        self._state = _S.FAILED
        return ServerStep(outgoing, (events.SessionFailed(error),))

    def _enter(self, state: ServerState, asked: Iterable[int] = ()) -> None:
        """Set the state to `state`. If it is a stage, it waits for the clients with the ids in `asked`."""
        self._state = state
        self._attendance.expect(asked)
        if self._hooks.on_stage is not None:
            self._hooks.on_stage(state)

    def _positions(self, members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._cohort.position[member] for member in members)

    def _ids(self, positions: Iterable[int]) -> set[int]:
        return {self._cohort.ids[position] for position in positions}

    def _to(self, positions: Iterable[int], frame: bytes) -> Outgoing:
        return Outgoing(self._attendance.here(self._cohort.ids[p] for p in positions), frame)
