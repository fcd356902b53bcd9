"""The server's machine: frames in, frames and events out. No sockets, no clock.

    events = server.receive(sender, frame)      # never raises on what a client sends
    step = server.close_stage()                 # whoever owns the deadline calls this
    step = server.ask(kind, payload, round_number=r)

A client that breaks the protocol is excluded, one that is late is ignored, one that is missing is a
drop-out; none of them stops the others. A server that is restarted has no session: it says so by not
knowing the session id, and no client reveals anything more for the old one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property
from typing import Final

from secagg import errors, events
from secagg import messages as m
from secagg.admission import Admission
from secagg.bitmap import pack_positions
from secagg.cohort import invitation_digest
from secagg.events import Outgoing, ServerEvent, ServerStep
from secagg.groups import GroupBook
from secagg.keys import Random, verify
from secagg.memory import VolatileMemory
from secagg.question import Question, content_digest, query_digest
from secagg.records import Format, encode_signatures
from secagg.registry import Registry
from secagg.spec import Table
from secagg.tally import Tally
from secagg.terms import Terms
from secagg.thresholds import Trust, choose_threshold
from secagg.transitions import COLLECTED, ServerState, check_turn, is_late

NONCE_BYTES: Final = 32
_OVERHEAD: Final = 256
_S: Final = ServerState


class ServerMachine:
    """One session with one cohort."""

    _random: Random = staticmethod(secrets.token_bytes)

    def __init__(
        self,
        *,
        table: Table,
        trust: Trust | str,
        sums: int,
        corrupt: int,
        dropout: Fraction | float,
        min_cohort: int,
        max_cohort: int,
        min_contributors: int,
        registry: Registry | None = None,
    ) -> None:
        self._terms = Terms(
            trust=Trust.parse(trust),
            sums=sums,
            corrupt=corrupt,
            dropout=dropout,
            min_cohort=min_cohort,
            max_cohort=max_cohort,
            min_contributors=min_contributors,
        )
        if (registry is not None) != (self._terms.trust is Trust.MALICIOUS):
            raise errors.ParameterError("a registry is needed under malicious_server, and only there")
        table.check_fits(max_cohort)
        self._table = table
        self._registry = registry
        self._state = _S.INVITING
        self._gone: set[int] = set()
        self._asked: frozenset[int] = frozenset()  # by this stage
        self._waiting: set[int] = set()  # of those, who has neither answered nor gone
        self._answered: set[int] = set()
        self._next_sum = 0
        self._memory = VolatileMemory()
        self._groups = GroupBook(table, self._memory)
        self.invitation = self._make_invitation()
        self._invited = self._context = invitation_digest(self.invitation)
        self._admission = Admission(
            Format(sums, signed=registry is not None),
            context=self._invited,
            registry=registry,
            most=max_cohort,
        )

    @cached_property
    def frame_limit(self) -> int:
        """The largest frame an honest client may send in any stage, or be late with."""
        form = Format(self._terms.sums, signed=True)
        vector = max(spec.packed_bytes for spec in self._table.values())
        return max(form.advert_bytes, self._terms.max_cohort * form.envelope_bytes, vector) + _OVERHEAD

    def _make_invitation(self) -> bytes:
        """The same frame for everybody."""
        registry = self._registry.digest if self._registry else b""
        nonce = self._random(NONCE_BYTES)
        trust, table = str(self._terms.trust), self._table.digest
        return m.Invitation(b"", trust, self._terms.sums, table, registry, nonce).encode()

    def __repr__(self) -> str:
        return f"ServerMachine(state={self._state.value}, next_sum={self._next_sum})"

    # --- what its owner can see ---

    @property
    def state(self) -> ServerState:
        return self._state

    @property
    def sums_left(self) -> int:
        return self._terms.sums - self._next_sum

    @property
    def members(self) -> tuple[int, ...]:
        """Clients that dealt shares and are still welcome."""
        return tuple(member for member in self._admission.shared if member not in self._gone)

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Who has yet to answer in this stage; in the first one, anybody may."""
        return tuple(sorted(self._waiting))

    # --- the calls ---

    def receive(self, sender: int, frame: bytes) -> tuple[ServerEvent, ...]:
        """Take one frame from a client. Misbehaviour becomes an event, never an exception."""
        if sender in self._gone:
            return ()
        try:
            message = m.decode(frame, sender=sender, limit=self.frame_limit)
            if isinstance(message, m.Leave):
                raise errors.Departed(sender, "left the session")
            if message.context != self._context_of(message):
                raise errors.WrongSession(sender, "a message of another session")
            if isinstance(message, m.Lost):
                return self._take_report(sender, message)
            if is_late(self._state, self._next_sum - 1, message):
                return (events.Late(sender),)
            check_turn(self._state, self._next_sum - 1, message, sender=sender)
            self._check_asked(sender)
            self._collect(sender, message)
        except errors.PeerError as error:
            return (events.Excluded(sender, error), *self.drop(sender))
        self._answered.add(sender)
        self._waiting.discard(sender)
        return self._full()

    def drop(self, member: int) -> tuple[ServerEvent, ...]:
        """The transport lost this client for good."""
        self._gone.add(member)
        self._waiting.discard(member)
        if self._state is _S.INVITING:
            self._admission.withdraw(member)
        return self._full()

    def ask(self, kind: str, payload: bytes, *, round_number: int) -> ServerStep:
        """Begin a sum. Raises `CohortChanged` if its group has lost somebody, before anyone is asked."""
        self._require(_S.READY)
        self._check_askable(kind, payload, round_number)
        question, frame = self._make_question(kind, payload, round_number)
        self._memory.remember_answer(
            group=self._table.group_of(kind),
            round_number=round_number,
            content=content_digest(kind, payload),
        )
        self._groups.answer(kind, round_number)
        self._tally = Tally(question, corrupt=self._terms.corrupt)
        self._next_sum += 1
        self._enter(_S.MASKING, self._ids(question.roster))
        return ServerStep((self._to(question.roster, frame),))

    def close_stage(self) -> ServerStep:
        """End the current stage with whoever has answered."""
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
        return ServerStep(step.outgoing, (*absent, *step.events))

    def abandon(self) -> ServerStep:
        """Give the current sum up, whatever its stage: nothing is released, the session lives on."""
        if self._state not in (_S.MASKING, _S.CONFIRMING, _S.UNMASKING):
            raise errors.StateError(f"there is no sum to abandon; the server is {self._state.value}")
        return self._abort(errors.SumFailed("abandoned by the server's owner"))

    def end(self) -> ServerStep:
        """End the session and tell everybody."""
        if self._state in (_S.ENDED, _S.FAILED):
            return ServerStep()
        told = tuple(member for member in self._admission.advertised if member not in self._gone)
        self._state = _S.ENDED
        return ServerStep((Outgoing(told, m.Farewell(self._invited).encode()),))

    # --- gates ---

    def _context_of(self, message: m.Message) -> bytes:
        return self._invited if isinstance(message, m.Advertisement) else self._context

    def _check_asked(self, sender: int) -> None:
        """Somebody the stage was opened for, for the first time."""
        if sender in self._answered:
            raise errors.OutOfOrder(sender, f"a second answer while {self._state.value}")
        if self._state is not _S.INVITING and sender not in self._asked:
            raise errors.OutOfOrder(sender, "was not asked")

    def _full(self) -> tuple[ServerEvent, ...]:
        waiting = self._state in COLLECTED and self._state is not _S.INVITING
        return (events.StageFull(),) if waiting and not self._waiting else ()

    def _collect(self, sender: int, message: m.Message) -> None:
        match message:
            case m.Advertisement():
                self._admission.add_advert(sender, message)
            case m.Shares():
                self._admission.add_shares(sender, message, self._cohort)
            case m.MaskedInput():
                self._tally.add_input(self._cohort.position[sender], message.data)
            case m.Confirmation():
                self._add_confirmation(sender, message)
            case m.Reveal():
                self._tally.add_reveal(self._cohort.position[sender], message)

    def _add_confirmation(self, sender: int, message: m.Confirmation) -> None:
        assert self._registry is not None  # the consistency round exists only in signed sessions
        fields = self._tally.question.confirmed_fields(self._tally.survivors)
        key = self._registry.members[sender]
        verify(key, message.signature, "survivors", *fields, peer=sender)
        self._tally.confirmations[self._cohort.position[sender]] = message.signature

    def _take_report(self, sender: int, message: m.Lost) -> tuple[ServerEvent, ...]:
        """Do without a dealer whose envelopes did not open for more clients than may be lying."""
        if self._state in (_S.ENDED, _S.FAILED):
            return (events.Late(sender),)
        if self._state in (_S.INVITING, _S.SHARING):
            raise errors.OutOfOrder(sender, f"{type(message).__name__} while {self._state.value}")
        self._admission.add_lost(sender, message, self._cohort)
        happened: list[ServerEvent] = []
        for dealer in self._admission.convicted(corrupt=self._terms.corrupt):
            if dealer not in self._gone:
                error = errors.CorruptDealer(dealer, "its envelopes do not open", proven=True)
                happened += [events.Excluded(dealer, error), *self.drop(dealer)]
        return tuple(happened)

    # --- stages ---

    def _close_inviting(self) -> ServerStep:
        present = len(self._admission.advertised)
        if present < self._terms.min_cohort:
            raise errors.TooFewClients(f"only {present} clients came; {self._terms.min_cohort} are needed")
        threshold = self._choose_threshold(present)
        self._cohort, frame = self._admission.key_list(threshold=threshold, invitation=self.invitation)
        self._context = self._cohort.session
        self._enter(_S.SHARING, self._cohort.ids)
        return ServerStep((Outgoing(self._here(self._cohort.ids), frame),))

    def _choose_threshold(self, present: int) -> int:
        try:
            terms = self._terms
            return choose_threshold(present, corrupt=terms.corrupt, dropout=terms.dropout, trust=terms.trust)
        except errors.ParameterError as error:
            raise errors.TooFewClients(str(error)) from None

    def _close_sharing(self) -> ServerStep:
        shared, least = self._admission.shared, self._least()
        if len(shared) < least:
            raise errors.TooFewClients(f"only {len(shared)} clients dealt shares; {least} are needed")
        self._enter(_S.READY)
        outgoing = tuple(
            Outgoing((member,), m.Delivery(self._context, parcels).encode())
            for member in self.members
            if (parcels := self._admission.parcels_for(member, self._cohort))
        )
        self._admission.forget_envelopes()
        ready = events.SessionReady(self._context, self.members, self._cohort.threshold)
        return ServerStep(outgoing, (ready,))

    def _close_masking(self) -> ServerStep:
        survivors, least = self._tally.fix_survivors(), self._least()
        question = self._tally.question
        if len(survivors) < least:
            raise errors.TooFewClients(f"only {len(survivors)} clients sent inputs; {least} are needed")
        if question.later_in_group and survivors != question.roster:
            raise errors.CohortChanged("a client left in the midst of a group")
        bitmap = pack_positions(survivors, self._cohort.size)
        stage = _S.CONFIRMING if self._terms.trust is Trust.MALICIOUS else _S.UNMASKING
        self._enter(stage, self._ids(survivors))
        frame = m.Survivors(self._context, question.sum_index, bitmap).encode()
        return ServerStep((self._to(survivors, frame),))

    def _close_confirming(self) -> ServerStep:
        confirmations, least = self._tally.confirmations, self._cohort.threshold
        if len(confirmations) < least:
            raise errors.TooFewClients(f"only {len(confirmations)} clients confirmed; {least} are needed")
        signers = tuple(sorted(confirmations))
        blob = encode_signatures([(self._cohort.ids[p], confirmations[p]) for p in signers])
        self._enter(_S.UNMASKING, self._ids(signers))
        frame = m.Confirmations(self._context, self._tally.question.sum_index, blob).encode()
        return ServerStep((self._to(signers, frame),))

    def _close_unmasking(self) -> ServerStep:
        tally, least = self._tally, self._cohort.threshold
        if len(tally.revealed) < least:
            raise errors.TooFewClients(
                f"only {len(tally.revealed)} clients revealed shares; {least} are needed"
            )
        total, wrong = tally.unmask()
        kind, round_number = tally.question.query.kind, tally.question.query.round
        self._groups.confirm(kind, round_number, tally.survivors)
        if tally.revealed != set(tally.survivors):  # whoever is missing would sit the next sum out
            self._groups.close(kind, round_number)
        self._enter(_S.READY)
        contributors = tuple(sorted(self._ids(tally.survivors)))
        released = events.SumReleased(tally.question.sum_index, total, contributors)
        return ServerStep(events=(*wrong, released))

    # --- groups and failures ---

    def _check_askable(self, kind: str, payload: bytes, round_number: int) -> None:
        """Refuse to ask what honest clients would refuse to answer."""
        if not isinstance(payload, bytes):
            raise errors.ParameterError("the payload of a query must be bytes")
        if kind not in self._table:
            raise errors.ParameterError(f"the table has no kind of sum {kind!r}")
        if not 0 <= round_number <= m.MAX_ROUND:
            raise errors.ParameterError(f"a round must be from 0 to {m.MAX_ROUND}")
        if self._next_sum >= self._terms.sums:
            raise errors.StateError(f"all {self._terms.sums} sums of this session are used")
        if self._groups.is_closed(kind, round_number):
            raise errors.CohortChanged("a client of this group has left; its last total stands")
        if self._memory.knows_query(content_digest(kind, payload)):
            raise errors.StateError("this query was asked before; clients would refuse it")
        try:
            self._groups.check_new(kind, round_number)
        except errors.PeerError as error:
            raise errors.StateError(error.why) from None

    def _make_question(self, kind: str, payload: bytes, round_number: int) -> tuple[Question, bytes]:
        later = self._groups.confirmed(kind, round_number)
        roster = self._positions(self.members) if later is None else later
        if self._ids(roster) & self._gone:
            self._groups.close(kind, round_number)
            raise errors.CohortChanged("a client of this group has left; its last total stands")
        if len(roster) < self._least():
            raise errors.TooFewClients(f"only {len(roster)} clients are left; {self._least()} are needed")
        bitmap = pack_positions(roster, self._cohort.size)
        query = m.Query(self._context, self._next_sum, round_number, kind, bitmap, payload)
        frame = query.encode()
        digest, spec = query_digest(frame), self._table[kind]
        return Question(self._cohort, spec, query, digest, roster, later is not None), frame

    def _abort(self, error: errors.SumFailed) -> ServerStep:
        """Release nothing, close the group, keep the session."""
        question = self._tally.question
        self._groups.close(question.query.kind, question.query.round)
        self._enter(_S.READY)
        happened: list[ServerEvent] = [events.SumAborted(question.sum_index, error)]
        if isinstance(error, errors.Unrecoverable):
            for dealer in error.dealers:
                if isinstance(dealer.peer, int) and (dealer.proven or self._few_enough_to_leave_out(error)):
                    happened += [events.Excluded(dealer.peer, dealer), *self.drop(dealer.peer)]
        closed = m.GroupClosed(self._context, question.sum_index).encode()
        return ServerStep((self._to(question.roster, closed),), tuple(happened))

    def _few_enough_to_leave_out(self, error: errors.Unrecoverable) -> bool:
        """Whether there are no more suspects than corrupt clients: then the session does without them."""
        return len(error.dealers) <= self._terms.corrupt

    def _fail(self, error: errors.SumFailed) -> ServerStep:
        farewell = self.end()
        self._state = _S.FAILED
        return ServerStep(farewell.outgoing, (events.SessionFailed(error),))

    # --- small helpers ---

    def _enter(self, state: ServerState, asked: Iterable[int] = ()) -> None:
        """Begin a stage that waits for `asked` (ids)."""
        self._state = state
        self._asked = frozenset(asked)
        self._waiting = set(self._asked - self._gone)
        self._answered = set()

    def _require(self, state: ServerState) -> None:
        if self._state is not state:
            raise errors.StateError(f"the server is {self._state.value}, not {state.value}")

    def _least(self) -> int:
        return max(self._cohort.threshold, self._terms.min_contributors)

    def _positions(self, members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._cohort.position[member] for member in members)

    def _ids(self, positions: tuple[int, ...]) -> set[int]:
        return {self._cohort.ids[position] for position in positions}

    def _here(self, members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(member for member in members if member not in self._gone)

    def _to(self, positions: tuple[int, ...], frame: bytes) -> Outgoing:
        return Outgoing(self._here(tuple(self._cohort.ids[p] for p in positions)), frame)
