"""`ClientMachine`: one client in one session, as a state machine without sockets and without a clock.

    step = client.receive(frame)          # send step.frames, look at step.events
    client.charge(asked.sum_index)        # after an Asked event, before values are computed; only with noise
    answer = client.answer(asked.sum_index, values)      # send answer.frame

Each frame is checked in three steps. `messages.decode` checks its form, `transitions.next_state` checks that
the state allows it, and `client_checks` compares it with the client's policy. If a check fails, the machine
erases all secrets, raises, and stays `FAILED`; the only frame that may still be sent is that of `leave()`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property

from numpy.typing import ArrayLike

from secagg import client_checks, errors, events
from secagg import messages as m
from secagg.answer_recorder import AnswerRecorder
from secagg.bitmap import PositionSet
from secagg.client_memory import Memory
from secagg.cohort_members import CohortView, invitation_digest, pack_neighbours
from secagg.differencing_rules import ContentOf, SequenceRules, SumSequence, whole_payload
from secagg.errors import SERVER
from secagg.events import Answer, ClientStep
from secagg.identity_registry import Registry
from secagg.key_list_checks import Introduction, fewest_contributors, largest_frame
from secagg.keys import Identity, OneTime
from secagg.machine_hooks import CLIENT_DEFAULTS, ClientHooks
from secagg.message_records import Advert, Format, parse_signatures
from secagg.policy import Policy
from secagg.query_context import Question, content_digest, query_digest
from secagg.self_and_pair_masks import put_on
from secagg.session_secrets import Vault
from secagg.share_exchange import ShareExchange
from secagg.sum_group_rules import GroupBook
from secagg.sum_spec import Table
from secagg.transitions import ClientState, fail_on_error, next_state
from secagg.trust_levels import Trust


class ClientMachine(OneTime):
    """One client, with the id `member`, in one session.

    `receive` takes a frame of the server and returns frames to send and events. After an `Asked` event, call
    `answer` or `decline`. The constructor raises `LocalError` if its parameters do not fit together.
    `receive` raises `PeerError` for a message that the client refuses; the client is then `FAILED` for good.

    `static` names the kinds of sums whose values do not depend on the query, such as values from a file.
    `content_of(kind, payload)` returns the part of a payload that does not depend on the round. Both are used
    to refuse a sum of the same values over nearly the same clients (see `secagg.differencing_rules`).

    >>> table = Table({"mean": SumSpec(parts=(Part(name="x", size=1, bits=32, bound=LInf(9.0)),))})
    >>> terms = dict(trust="curious_server", corrupt=1, min_cohort=3, max_cohort=9, min_contributors=3)
    >>> policy = Policy(**terms, max_sums=1, unnoised_sums=1)
    >>> client = ClientMachine(member=5, table=table, policy=policy, memory=VolatileMemory())
    >>> server = ServerMachine(table=table, params=SessionParams(**terms))
    >>> step = client.receive(server.invitation)
    >>> client, len(step.frames)
    (ClientMachine(member=5, state=advertised), 1)
    """

    def __init__(
        self,
        *,
        member: int,
        table: Table,
        policy: Policy,
        memory: Memory,
        identity: Identity | None = None,
        registry: Registry | None = None,
        static: Collection[str] = (),
        content_of: ContentOf = whole_payload,
        hooks: ClientHooks = CLIENT_DEFAULTS,
    ) -> None:
        client_checks.check_settings(member, table, policy, memory, identity, registry)
        if registry is not None:
            memory.remember_registry(registry.version, registry.digest)
        self.member = member
        self._table = table
        self._policy = policy
        self._memory = memory
        self._identity = identity
        self._registry = registry
        self._hooks = hooks
        self._groups = GroupBook(table, memory)
        self._recorder = AnswerRecorder(table, policy, memory, self._groups)
        self._rules = SequenceRules(policy, memory, table=table, static=static, content_of=content_of)
        self._sequences: tuple[SumSequence, ...] = ()  # the sequences to which the current sum belongs
        self._now: int | None = None
        self._state = ClientState.NEW
        self._invited = b""
        self._context = b""  # expected in the next message: empty, the invitation's digest, the session id
        self._last_sum = -1
        self._last_kind: tuple[str, int] | None = None  # kind and round of the last sum; None: no query came
        self._vault = Vault(owner=member, sums=0, random=self._hooks.random)
        self._session_open = False
        self._question: Question | None = None
        self._survivors = PositionSet()

    @property
    def state(self) -> ClientState:
        return self._state

    def __repr__(self) -> str:
        return f"ClientMachine(member={self.member}, state={self._state.value})"

    # --- the five calls ---

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        """Process one frame from the server. Return frames to send to the server, and events. Raises
        `PeerError` if a check refuses the frame, `ExpiredRegistry`, and `LedgerError`, for example after a
        fork; the state is then `FAILED`. `now` is the Unix time in seconds. It is needed for an invitation if
        the registry can expire."""
        self._now = now
        if self._hooks.on_message is not None:
            self._hooks.on_message(m.message_type(frame, sender=SERVER))
        try:
            self._memory.check_process()  # a forked copy of this client must not sign or reveal anything
            message = m.decode(frame, sender=SERVER, limit=self.frame_limit)
            state = next_state(self._policy.trust, self._state, message)
            if message.context != (self._invited if isinstance(message, m.Farewell) else self._context):
                raise errors.WrongSession(SERVER, "a message of another session")
            self._state = state
            return self._handlers()[type(message)](message, bytes(frame))
        except BaseException:
            self._stop(ClientState.FAILED)
            raise

    def charge(self, sum_index: int) -> None:
        """Record and pay the answer to sum `sum_index` before its values are looked at; then `answer` does
        not. Do nothing if that is done. Raises `StateError` if this sum's query is not open or a part has no
        noise, and `PolicyError` or `LedgerError` if it cannot be paid; the state is then `FAILED`."""
        question = self._require_asked(sum_index)
        if not question.spec.is_private:
            raise errors.StateError(f"sum {sum_index} has a part without noise: `answer` records it")
        with fail_on_error(self._stop):
            self._recorder.record(question, self._sequences)

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        """Mask `values` (by part name) for sum `sum_index`. Return the frame to send, and the clipped parts.
        If all parts have noise, pay first, as `charge` does. Raises `StateError` if the query is not open,
        `InputError` if values do not match the spec, and `UnchangedValues` if `static` values were summed
        before over nearly the same clients. The state is then unchanged; after `UnchangedValues`, call
        `decline`. Other errors make it `FAILED`."""
        question = self._require_asked(sum_index)
        with fail_on_error(self._stop, unless=(errors.InputError, errors.UnchangedValues)):
            if question.spec.is_private:
                self._recorder.record(question, self._sequences)
            unchanged = self._rules.of_values(question, values)
            self._rules.check(unchanged, question, question.roster)
            noise = question.noise_streams(self._vault.noise_seeds(question.sum_index), self._position)
            encoded = question.encoding.encode(values, self._hooks.rounding_stream(question), noise=noise)
            residues = self._hooks.transformed(question, encoded.residues)
            self._sequences += unchanged
            self._recorder.record(question, self._sequences)
            secrets = self._vault.take_mask_secrets(question.sum_index)
            words = put_on(residues, question, position=self._position, secrets=secrets)
            data = question.encoding.pack(residues)
            said = question.input_fields(self._receipt, data, words) if self._identity else ()
            signature = self._sign("masked input", *said)
            frame = m.MaskedInput(self._context, question.sum_index, data, words, signature).encode()
        self._state = ClientState.MASKED
        return Answer(frame, encoded.clipped)

    def decline(self, sum_index: int) -> bytes:
        """Decline sum `sum_index`. Return the frame to send. Raises `StateError` if it has no open query."""
        self._require_asked(sum_index)
        return self._decline(sum_index)

    def leave(self) -> bytes:
        """End the session for this client, in any state. Return the last frame to send to the server."""
        if self._state not in (ClientState.ENDED, ClientState.FAILED):
            self._stop(ClientState.ENDED)
        return m.Leave(self._context).encode()

    # --- checks of each frame ---

    @cached_property
    def frame_limit(self) -> int:
        """The size in bytes of the largest frame that this client accepts."""
        return largest_frame(self._policy, self._table)

    def _handlers(self) -> Mapping[type[m.Message], Callable[..., ClientStep]]:
        return {
            m.Invitation: self._on_invitation,
            m.KeyList: self._on_key_list,
            m.Neighbours: self._on_neighbours,
            m.Delivery: self._on_delivery,
            m.Query: self._on_query,
            m.Survivors: self._on_survivors,
            m.Confirmations: self._on_confirmations,
            m.GroupClosed: self._on_group_closed,
            m.Farewell: self._on_farewell,
        }

    def _stop(self, state: ClientState) -> None:
        """Erase all secrets, close the session in the client's `Memory`, and set the state to `state`."""
        self._state = state
        self._question = None
        self._vault.erase()
        if self._session_open:
            self._session_open = False
            self._memory.close_session()

    # --- set-up ---

    def _on_invitation(self, message: m.Invitation, frame: bytes) -> ClientStep:
        client_checks.check_invitation(message, self._policy, self._table, self._registry)
        if self._registry is not None:
            self._registry.check_current(self._now)
        self._memory.open_session()
        self._session_open = True
        self._invitation = frame
        self._context = self._invited = invitation_digest(frame)
        seeds = self._table.seeds
        agreement = self._policy.key_agreement
        self._form = Format(message.sums, signed=self._identity is not None, seeds=seeds, agreement=agreement)
        self._vault = Vault(
            owner=self.member,
            sums=message.sums,
            random=self._hooks.random,
            seeds=seeds,
            agreement=agreement,
            encapsulate=self._hooks.encapsulate,
        )
        self._advert = self._make_advert()
        return ClientStep((m.Advertisement(self._context, self._advert.encode()).encode(),))

    def _make_advert(self) -> Advert:
        vault = self._vault
        keys = (vault.channel_key(), vault.kem_key(), vault.mask_public_keys(), vault.commitments())
        unsigned = Advert(self.member, *keys)
        return Advert(self.member, *keys, self._sign("advert", self._context, unsigned.body))

    def _sign(self, purpose: str, *fields: bytes) -> bytes:
        return self._identity.sign(purpose, *fields) if self._identity else b""

    def _on_key_list(self, message: m.KeyList, frame: bytes) -> ClientStep:
        return self._enter_cohort(self._introduction().by_key_list(message, frame))

    def _on_neighbours(self, message: m.Neighbours, _: bytes) -> ClientStep:
        return self._enter_cohort(self._introduction().by_neighbours(message))

    def _introduction(self) -> Introduction:
        terms = self._policy, self._registry, self._form
        return Introduction(*terms, self._invitation, self._context, self._advert)

    def _enter_cohort(self, cohort: CohortView) -> ClientStep:
        """Check the cohort and record its session id. Return the frame with the encrypted shares."""
        client_checks.check_new_session(cohort.session, self._memory)
        self._least = fewest_contributors(cohort, self._policy)
        self._rules.check_cohort(cohort, self._least)
        self._memory.remember_session(cohort.session)
        self._context, self._cohort = cohort.session, cohort
        self._position = cohort.position[self.member]
        self._exchange = ShareExchange(self.member, cohort, self._vault, self._form, self._registry)
        envelopes, tags = self._exchange.seal_shares()
        signature = self._sign("key list", cohort.session)
        tags_signature = self._sign("share tags", cohort.session, tags)
        return ClientStep((m.Shares(self._context, envelopes, signature, tags, tags_signature).encode(),))

    def _on_delivery(self, message: m.Delivery, _: bytes) -> ClientStep:
        self._sharers, lost = self._exchange.open_parcels(message.parcels)
        self._receipt = self._exchange.receipt()
        client_checks.check_sharers(self._sharers, self._cohort, self._least)
        deposits = self._exchange.deposits()
        self._vault.forget_channel()
        frames = []
        if lost:
            dealers = pack_neighbours(self._cohort, (self._cohort.position[dealer] for dealer in lost))
            frames.append(m.Lost(self._context, dealers).encode())
        if self._form.is_hybrid:
            self._sharers = {self._position, *deposits}  # there is no pair secret with the others
        if deposits and client_checks.enough_sharers(self._sharers, self._cohort, self._least):
            blob = b"".join(deposits.values())
            signature = self._sign("deposit", self._context, self._receipt, blob)
            frames.append(m.Deposit(self._context, blob, signature).encode())
        joined = events.Joined(self._context, self._cohort.size, self._cohort.threshold)
        return ClientStep(tuple(frames), (*map(events.EnvelopeLost, lost), joined))

    # --- one sum ---

    def _content(self, query: m.Query) -> bytes:
        return content_digest(query.kind, query.payload, self._table.terms)

    def _on_query(self, message: m.Query, frame: bytes) -> ClientStep:
        client_checks.check_sum_index(message.sum_index, self._last_sum, self._form.sums)
        client_checks.check_kind(message.kind, self._table)
        spec = self._table[message.kind]
        roster = PositionSet.parse(message.roster, self._cohort.size, sender=SERVER)
        client_checks.check_roster(roster, self._sharers, self._position, self._cohort, self._least)
        client_checks.check_noise_roster(len(roster), spec)
        self._groups.check_new(message.kind, message.round)
        client_checks.check_query_is_new(self._content(message), self._memory)
        client_checks.check_budget(self._memory, self._policy, spec, roster=len(roster))
        self._last_sum = message.sum_index
        self._last_kind = (message.kind, message.round)
        self._vault.erase_before(message.sum_index)
        if self._groups.missed_confirmation(message.kind, message.round):
            declined = self._decline(message.sum_index)
            return ClientStep((declined,), (events.SatOut(message.sum_index, message.kind),))
        self._groups.check_roster(message.kind, message.round, roster)
        later = self._groups.continues(message.kind, message.round)
        self._question = Question(self._cohort, spec, message, query_digest(frame), roster, later)
        self._sequences = self._rules.of_query(self._question)
        self._rules.check(self._sequences, self._question, roster)
        return ClientStep(events=(events.Asked.to(self._question),))

    def _require_asked(self, sum_index: int) -> Question:
        question = self._question
        if self._state is not ClientState.ASKED or question is None or question.sum_index != sum_index:
            raise errors.StateError(f"sum {sum_index} is not being asked; the client is {self._state.value}")
        return question

    def _decline(self, sum_index: int) -> bytes:
        self._vault.erase_before(sum_index + 1)
        self._question = None
        self._state = ClientState.READY
        return m.Decline(self._context, sum_index).encode()

    def _on_survivors(self, message: m.Survivors, _: bytes) -> ClientStep:
        question = self._current(message.sum_index)
        survivors = PositionSet.parse(message.survivors, self._cohort.size, sender=SERVER)
        client_checks.check_survivors(survivors, question.roster, self._position)
        client_checks.check_contributors(survivors, self._cohort, self._least)
        client_checks.check_noise_kept(len(survivors), question.roster, question.spec)
        if question.later_in_group:
            client_checks.check_group_survivors(survivors, question.roster)
        self._rules.check(self._sequences, question, survivors)
        self._survivors = survivors
        self._rules.remember(self._sequences, question, survivors)
        if self._policy.trust is Trust.CURIOUS:
            return self._reveal(question)
        signature = self._sign("survivors", *question.confirmed_fields(survivors))
        frame = m.Confirmation(self._context, question.sum_index, signature).encode()
        return ClientStep((frame,))

    def _on_confirmations(self, message: m.Confirmations, _: bytes) -> ClientStep:
        question = self._current(message.sum_index)
        assert self._registry is not None  # a signed session has a registry
        client_checks.check_confirmations(
            parse_signatures(message.signatures, most=self._policy.max_cohort),
            question.confirmed_fields(self._survivors),
            survivors=self._survivors,
            cohort=self._cohort,
            registry=self._registry,
        )
        self._rules.remember(self._sequences, question, self._survivors, confirmed=True)
        return self._reveal(question)

    def _reveal(self, question: Question) -> ClientStep:
        """Record the survivors. Return the frame with shares that lets the server remove the sum's masks."""
        asked = [position for position in self._cohort.neighbourhood if position in question.roster]
        rows = self._vault.take_shares(
            question.sum_index,
            roster=asked,
            survivors=self._survivors,
            surplus=question.surplus(len(self._survivors)),
            hashes=lambda dealer, row: question.dealt_row(dealer, self._position).hashes(row),
        )
        self._groups.confirm(question.query.kind, question.query.round, self._survivors)
        self._memory.note_confirmed(self._cohort.session, question.sum_index, len(self._survivors))
        self._question = None
        revealed = (
            pack_neighbours(self._cohort, rows),
            b"".join(row.shares for row in rows.values()),
            b"".join(row.hidden for row in rows.values()),
        )
        fields = question.reveal_fields(self._survivors, self._receipt, *revealed)
        reveal = m.Reveal(self._context, question.sum_index, *revealed, self._sign("reveal", *fields))
        return ClientStep((reveal.encode(),), (events.Confirmed(question.sum_index, len(self._survivors)),))

    def _current(self, sum_index: int) -> Question:
        question = self._question
        assert question is not None  # the table of transitions admits survivors only after a query
        client_checks.check_same_sum(sum_index, question.sum_index)
        return question

    # --- endings ---

    def _on_group_closed(self, message: m.GroupClosed, _: bytes) -> ClientStep:
        """Erase an abandoned sum's secrets. If its query came, close its group (sums of the same vectors)."""
        client_checks.check_closed_sum(message.sum_index, self._last_sum, self._form.sums)
        self._vault.erase_before(message.sum_index + 1)
        if self._question is not None and self._question.sum_index == message.sum_index:
            self._rules.give_up(self._question)
        if message.sum_index > self._last_sum:
            self._last_kind = None
        if self._last_kind is not None:
            self._groups.close(*self._last_kind)
        self._last_sum = message.sum_index
        self._question = None
        return ClientStep(events=(events.Abandoned(message.sum_index),))

    def _on_farewell(self, _: m.Farewell, __: bytes) -> ClientStep:
        self._stop(ClientState.ENDED)
        return ClientStep(events=(events.SessionOver(),))
