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
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Final

from secagg import errors, events
from secagg import messages as m
from secagg import server_setup_and_quorum_checks as quorum_checks
from secagg.admission_and_attendance import Admission, Attendance
from secagg.bitmap import PositionSet
from secagg.cohort_members import invitation_digest
from secagg.convictions import Convictions
from secagg.dealt_shares import DealtShares
from secagg.differencing_rules import ContentOf, SetLog, whole_payload
from secagg.events import Outgoing, ServerEvent, ServerStep
from secagg.identity_registry import Registry
from secagg.machine_hooks import SERVER_DEFAULTS, ServerHooks
from secagg.message_records import Format, encode_signatures
from secagg.query_context import Question, query_digest
from secagg.repeated_query_roster import RepeatPlanner
from secagg.self_and_pair_masks import Expander, OneProcess
from secagg.session_params import SessionParams
from secagg.signed_answers import SignedAnswers
from secagg.sum_group_rules import Agenda
from secagg.sum_spec import Table
from secagg.sum_unmasking import Tally
from secagg.transitions import COLLECTED, ServerState, check_collected, is_late
from secagg.trust_levels import Trust, liars_around

_S: Final = ServerState


class ServerMachine:
    """The server of one session with one cohort.

    Send `invitation` to all clients, and pass their frames to `receive`. `close_stage`, `ask`, `abandon` and
    `end` return frames to send and events, also about clients that break the protocol. The constructor raises
    `LocalError` if its parameters do not fit together. `now` is the Unix time, for registries that expire.
    `history`, earlier survivors, helps to find clients that accept a `content_of(kind, payload)` again. It
    refuses the adverts of `barred` clients, who lied in earlier sessions.

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
        barred: Collection[int] = (),
        hooks: ServerHooks = SERVER_DEFAULTS,
    ) -> None:
        quorum_checks.check_session(table, params, registry, now)
        self._params = params
        self._hooks = hooks
        self.table: Final = table
        self.min_cohort: Final = params.min_cohort  # the fewest clients that must join
        self._expander = expander or OneProcess()
        self._registry = registry
        self._state = _S.INVITING
        self._attendance = Attendance()
        self._begun: Tally | None = None  # the current or last sum
        self._stranded: set[int] = set()
        self._pending: list[ServerEvent] = []  # to report with the next step
        self._agenda = Agenda(table, params.sums)
        self._repeats = RepeatPlanner(history or SetLog(), params, table=table, content_of=content_of)
        self.invitation = quorum_checks.invite(table, params, registry, hooks.random)
        self._invited = self._context = invitation_digest(self.invitation)
        signed, agreement = registry is not None, params.key_agreement
        self._form = Format(params.sums, signed=signed, seeds=table.seeds, agreement=agreement)
        self._admission = Admission(
            self._form, context=self._invited, registry=registry, most=params.max_cohort, barred=barred
        )

    @cached_property
    def frame_limit(self) -> int:
        """An upper bound of the size, in bytes, of the frames that an honest client sends in any stage."""
        return quorum_checks.largest_frame(self._form, self.table, self._params.max_cohort)

    def __repr__(self) -> str:
        return f"ServerMachine(state={self._state.value}, next_sum={self._agenda.next_sum})"

    # --- its state ---

    @property
    def state(self) -> ServerState:
        return self._state

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
    def around(self) -> Counter[tuple[int, int, bool]]:
        """The `Tally.around` of the last sum. Its entries determine the sizes of inputs and reveals."""
        return self._tally.around()

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
            if is_late(self._state, self._agenda.current_sum, message):
                return (events.Late(sender),)
            check_collected(self._state, self._agenda.current_sum, message, sender=sender)
            self._attendance.check(sender, self._state.value)
            self._collect(sender, message)
        except errors.Lie as lie:
            return self._expel(self._convictions.convict([lie], self._tally))
        except errors.PeerError as error:
            return (events.Excluded(sender, error), *self.drop(sender))
        self._attendance.answer(sender)
        if self._hooks.on_message is not None:
            self._hooks.on_message(sender, message)
        declined = (events.Declined(sender),) if isinstance(message, m.Decline) else ()
        return (*declined, *self._full())

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
        self._begun = Tally(question, self._topology.graph, self._dealt, expander=self._expander)
        self._enter(_S.MASKING, self._ids(question.roster))
        return ServerStep((self._to(question.roster, frame),), self._happened())

    def close_stage(self) -> ServerStep:
        """End the current stage with the answers that have arrived. Return the frames of the next stage, and
        events, such as a released total or why there is none. Raises `StateError` if no stage is open."""
        closers = {
            _S.INVITING: self._close_inviting,
            _S.SHARING: self._close_sharing,
            _S.DEPOSITING: self._close_depositing,
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
            in_setup = stage in (_S.INVITING, _S.SHARING, _S.DEPOSITING)
            step = self._fail(error) if in_setup else self._abort(error)
        absent = (events.Missing(missing, stage.value),) if missing else ()
        return ServerStep(step.outgoing, (*absent, *self._happened(), *step.events))

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
    def _tally(self) -> Tally:
        assert self._begun is not None  # there is no stage of a sum before the first sum
        return self._begun

    def _full(self) -> tuple[ServerEvent, ...]:
        return (events.StageFull(),) if self._state in COLLECTED and self._attendance.is_full else ()

    def _collect(self, sender: int, message: m.Message) -> None:
        match message:
            case m.Advertisement():
                self._admission.add_advert(sender, message)
            case m.Shares():
                self._admission.add_shares(sender, message, self._cohort, self._dealt)
            case m.Deposit():
                self._answers.add_deposit(sender, message)
            case m.MaskedInput() | m.Confirmation() | m.Reveal():
                self._answers.add(sender, message, self._tally)

    def _take_report(self, sender: int, message: m.Lost) -> tuple[ServerEvent, ...]:
        """Record which dealers' shares `sender` could not open, or do not fit their tags. Raises `PeerError`
        for a bad report."""
        if self._state in (_S.ENDED, _S.FAILED):
            return (events.Late(sender),)
        if self._state in (_S.INVITING, _S.SHARING):
            raise errors.OutOfOrder(sender, f"{type(message).__name__} while {self._state.value}")
        self._admission.check_report(sender, self._cohort, self._dealt)
        dealers = self._answers.reported(sender, message)
        return self._expel(self._convictions.report(self._cohort.position[sender], dealers))

    def _expel(self, happened: Iterable[events.Convicted | events.Excluded]) -> tuple[ServerEvent, ...]:
        """Remove the clients that `happened` excludes. Return these events, and what follows from them."""
        found: list[ServerEvent] = []
        for event in happened:
            found.append(event)
            if isinstance(event, events.Excluded):
                found += self.drop(event.peer)
        return tuple(found)

    # --- stages ---

    def _close_inviting(self) -> ServerStep:
        present, params, random = len(self._admission.advertised), self._params, self._hooks.random
        self._topology = quorum_checks.topology_for(present, params, random)
        self._cohort, lists = self._admission.key_lists(self._topology, self.invitation, params.name_members)
        self._context = self._cohort.session
        self._dealt = DealtShares(self._cohort, self._topology.graph, self._form)
        self._answers = SignedAnswers(self._registry, self._cohort, self._dealt, self._form)
        most = liars_around(params.corrupt, self._topology.threshold)
        frames = (self.invitation, lists[0].frame) if self._form.signed else None
        self._convictions = Convictions(self._cohort, self._dealt, most=most, frames=frames)
        self._enter(_S.SHARING, self._cohort.ids)
        outgoing = (Outgoing(self._attendance.here(packet.receivers), packet.frame) for packet in lists)
        return ServerStep(tuple(packet for packet in outgoing if packet.receivers))

    def _close_sharing(self) -> ServerStep:
        self._note_stranded()
        dealt, stranded = len(self._admission.shared), len(self._stranded)
        quorum_checks.check_dealt(dealt, stranded=stranded, least=self._topology.least)
        members = self.members
        outgoing = self._admission.deliveries(members, self._cohort, self._dealt)
        if self._form.is_hybrid:
            self._enter(_S.DEPOSITING, members)
            return ServerStep(outgoing)
        self._enter(_S.READY)
        return ServerStep(outgoing, (self._ready(),))

    def _ready(self) -> events.SessionReady:
        neighbours, exchanged = self._topology.graph.neighbours, self._dealt.exchanged()
        return events.SessionReady(self._context, self.members, self._cohort.threshold, neighbours, exchanged)

    def _close_depositing(self) -> ServerStep:
        """Settle all disputes about shares and pair secrets, before any input is sent."""
        self._stranded.update(self.waiting_for)  # no client has a pair secret with them
        disputes = [*self._dealt.disputes(), *self._dealt.deposits.disputes()]
        self._pending += self._expel(self._convictions.settle(disputes))
        self._enter(_S.READY)
        self._note_stranded()
        quorum_checks.check_enough(len(self.members), "made deposits", self._topology.least)
        return ServerStep(events=(self._ready(),))

    def _note_stranded(self) -> None:
        """On a ring, mark members with too few neighbours left: their masks could not be removed."""
        stranded = self._ids(self._topology.stranded(self._positions(self.members)))
        self._stranded |= stranded
        if stranded:
            self._pending.append(events.Stranded(tuple(sorted(stranded))))

    def _happened(self) -> tuple[ServerEvent, ...]:
        """Return the events to report with this step, and forget them."""
        pending, self._pending = tuple(self._pending), []
        return pending

    def _close_masking(self) -> ServerStep:
        if disputes := self._tally.disputes():
            raise errors.Disputed(disputes, signed=True)
        survivors, question = self._tally.fix_survivors(), self._tally.question
        quorum_checks.check_survivors(survivors, self._tally, self._topology)
        ids = question.member_ids(survivors)
        sequences = self._repeats.confirm(question.query, ids, later=question.later_in_group)
        stage = _S.CONFIRMING if self._params.trust is Trust.MALICIOUS else _S.UNMASKING
        self._enter(stage, self._ids(survivors))
        frame = m.Survivors(self._context, question.sum_index, survivors.pack(self._cohort.size)).encode()
        fixed = (events.SurvivorsFixed(each, ids) for each in sequences)
        return ServerStep((self._to(survivors, frame),), tuple(fixed))

    def _close_confirming(self) -> ServerStep:
        tally = self._tally
        quorum_checks.check_enough(len(tally.confirmations), "confirmed", self._cohort.threshold)
        self._enter(_S.UNMASKING, self._ids(tally.confirmations))
        blob = encode_signatures(tally.signers())
        frame = m.Confirmations(self._context, tally.question.sum_index, blob).encode()
        return ServerStep((self._to(sorted(tally.confirmations), frame),))

    def _close_unmasking(self) -> ServerStep:
        quorum_checks.check_enough(len(self._tally.revealed), "revealed shares", self._cohort.threshold)
        total = (tally := self._tally).unmask()
        self._agenda.confirm(tally.question.query, tally.survivors, revealed=tally.revealed)
        self._repeats.release(tally.question.query, later=tally.question.later_in_group)
        self._enter(_S.READY)
        ids = tuple(sorted(self._ids(tally.survivors)))
        return ServerStep(events=(events.SumReleased(tally.question.sum_index, total, ids),))

    # --- groups, failures and small helpers ---

    def _make_question(self, kind: str, payload: bytes, round_number: int) -> tuple[Question, bytes]:
        later, spec = self._agenda.later_roster(kind, round_number), self.table[kind]
        least = max(self._topology.least, spec.least_roster)
        chosen = self._repeats.roster(kind, payload, self.members, need=least) if later is None else ()
        roster = self._positions(chosen) if later is None else later
        if self._ids(roster) & self._attendance.gone:
            self._agenda.close(kind, round_number)
            raise errors.CohortChanged("a client of this group has left; its last total stands")
        quorum_checks.check_enough(len(roster), "are left", least)
        asked = (round_number, kind, roster.pack(self._cohort.size), payload)
        query = m.Query(self._context, self._agenda.next_sum, *asked)
        digest = query_digest(frame := query.encode())
        return Question(self._cohort, spec, query, digest, roster, later is not None), frame

    def _abort(self, error: errors.SumFailed) -> ServerStep:
        """Abort the sum: release nothing and close its group, but keep the session. Convict the clients that
        `error` says have lied, and settle its disputes."""
        question = self._tally.question
        self._agenda.close(question.query.kind, question.query.round)
        self._enter(_S.READY)
        aborted = events.SumAborted(question.sum_index, error)
        happened = (aborted, *self._expel(self._convictions.after(error, self._tally)))
        closed = m.GroupClosed(self._context, question.sum_index)
        return ServerStep((self._to(question.roster, closed.encode()),), happened)

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

    def _positions(self, members: Iterable[int]) -> PositionSet:
        return PositionSet(self._cohort.position[member] for member in members)

    def _ids(self, positions: Iterable[int]) -> set[int]:
        return {self._cohort.ids[position] for position in positions}

    def _to(self, positions: Iterable[int], frame: bytes) -> Outgoing:
        return Outgoing(self._attendance.here(self._cohort.ids[p] for p in positions), frame)
