"""Sums without any protection, for fast research. The process that runs them sees the values of every client.

Values are clipped, rounded and wrapped exactly as on a real client. Under the same `Setting.insecure_seed`, a
total equals that of the secure protocol to the last bit, except for noise, which depends on the secrets of a
session. Drop-outs and refusals follow the same rules, with one exception: on a ring graph, a secure sum can
also fail because too many neighbours of one client drop out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from protocols.algorithm import AnyAlgorithm
from protocols.learner import Learner
from protocols.query_encoding import query_content
from secagg import client_checks
from secagg.bitmap import PositionSet
from secagg.client_budget import check_priced, sum_charge
from secagg.client_memory import AnswerEntry
from secagg.differencing_rules import kind_sequence, refuse
from secagg.errors import CohortChanged, ParameterError, PeerError, TooFewClients
from secagg.events import Abandoned, Asked, Confirmed, Joined
from secagg.hybrid_keys import KeyAgreement
from secagg.local_session import Stage
from secagg.messages import Query
from secagg.noise.zcdp_cost import Adjacency
from secagg.query_context import content_digest
from secagg.repeated_query_roster import RepeatPlanner
from secagg.sum_group_rules import Agenda, GroupBook
from secagg.sum_spec import SumSpec, Total
from secagg.topology import plan
from secagg.trust_levels import Trust
from sims.coordination.transport import SessionGraph, SumStats
from sims.records.sum_records import Refusal
from sims.runtime.plain_addition import Addition, EncodedSum
from sims.runtime.session_channel import SessionChannel, SimulatedSessionPlan
from sims.runtime.sum_and_dropout_settings import Setting

_SET_UP = -1
_NO_SESSION = bytes(32)


def insecure_plain_sum(
    algorithm: AnyAlgorithm, learners: Mapping[int, Learner], setting: Setting
) -> SessionChannel:
    """Return a channel that adds up the answers of clients without protection. Raise `ParameterError` if the
    algorithm cannot run with these learners (by client id) or this setting.

    >>> from protocols.fedavg import FedAvg
    >>> from protocols.quadratic_learner import QuadraticLearner
    >>> from protocols.run import Run
    >>> algorithm = FedAvg(dim=2, clients=3, clip=10.0)
    >>> learners = {k: QuadraticLearner(np.array([1.0, float(k)])) for k in range(3)}
    >>> channel = insecure_plain_sum(algorithm, learners, Setting())
    >>> Run(algorithm, channel, algorithm.start(np.zeros(2))).round().clients
    3
    """
    return SessionChannel(algorithm, learners, setting, PlainSession)


class PlainSession:
    """A session without protection, which has the same interface as `secagg.local_session.LocalSession`."""

    is_plain = True

    def __init__(self, plan: SimulatedSessionPlan) -> None:
        self._plan = plan
        self._policy = plan.policy
        self._table = plan.table
        self._table.check_fits(len(plan.members))
        self._table.check_colluders(plan.setting.corrupt)
        check_priced(self._table)
        self._agenda = Agenda(plan.table, plan.setting.sums)
        self._later = False  # whether the current sum is not the first of its group
        self._repeats = RepeatPlanner(
            plan.history, plan.setting.params, table=plan.table, content_of=query_content
        )
        self._books = {member: GroupBook(plan.table, plan.memories[member]) for member in plan.members}
        self._cohort: tuple[int, ...] = ()
        self._members: PositionSet = PositionSet()
        self._threshold = self._least = 0
        self._gone: set[int] = set()  # positions in the cohort of clients that left
        self._stage = Stage.ADVERTISE
        self.stats = SumStats()
        self.graph: SessionGraph | None = None
        self.contributors: tuple[int, ...] = ()  # of the last sum
        self.informed: set[int] = set()
        self.bytes_up: Counter[Stage] = Counter()  # the counters stay empty: no bytes are sent
        self.bytes_down: Counter[Stage] = Counter()
        self.frames_up: Counter[Stage] = Counter()
        self.frames_down: Counter[Stage] = Counter()

    # --- set-up ---

    def open(self) -> None:
        setting = self._plan.setting
        self._cohort = tuple(k for k in self._plan.members if self._here(k, Stage.ADVERTISE, _SET_UP))
        if len(self._cohort) < setting.corrupt + 2:
            raise TooFewClients.only(len(self._cohort), "came", setting.corrupt + 2)
        try:
            planned = plan(len(self._cohort), setting.params)
        except ParameterError as error:
            raise TooFewClients(str(error), present=len(self._cohort)) from None
        self._threshold = planned.least
        self._least = max(self._threshold, setting.corrupt + 2)
        self._members = self._positions(Stage.SHARE, range(len(self._cohort)), _SET_UP)
        if len(self._members) < self._least:
            raise TooFewClients.only(len(self._members), "dealt shares", self._least)
        if self._policy.key_agreement is KeyAgreement.HYBRID:
            self._members = self._positions(Stage.DEPOSIT, self._members, _SET_UP)
            if len(self._members) < self._least:
                raise TooFewClients.only(len(self._members), "made deposits", self._least)
        for member in self._ids(self._members):
            self._plan.listener(member, Joined(_NO_SESSION, len(self._cohort), self._threshold))

    def end(self) -> None:
        """Do nothing: there are no secrets to erase."""

    # --- one sum ---

    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        self.informed = set()
        self._agenda.check(kind, payload, round_number)
        self._gone |= {position for position, k in enumerate(self._cohort) if k in self._plan.left}
        later = self._agenda.later_roster(kind, round_number)
        roster = self._roster(kind, payload) if later is None else later
        self._later = later is not None
        self._check_roster(roster, kind, round_number)
        bitmap = roster.pack(len(self._cohort))
        query = Query(_NO_SESSION, self._agenda.next_sum, round_number, kind, bitmap, payload)
        self._agenda.note(query)
        self.stats.index, self.stats.invited = query.sum_index, len(roster)
        adding = SumInProgress(self._plan, self._cohort, roster, query, self._policy.adjacency)
        try:
            self._stage = Stage.MASK
            self._collect(adding, self._willing(adding))
            survivors = adding.survivors()
            self.stats.masked = len(survivors)
            self._check_survivors(adding, survivors, later)
            revealed = self._confirm(adding, survivors)
        except BaseException:
            self._agenda.close(kind, round_number)
            self._abandon(adding)
            raise
        self._agenda.confirm(query, survivors, revealed=revealed)
        self._repeats.release(query, later=self._later)
        self.contributors = tuple(self._cohort[position] for position in sorted(survivors))
        return adding.addition.total()

    def _roster(self, kind: str, payload: bytes) -> PositionSet:
        """Return the positions in the cohort of the clients to ask. If the query was asked before, these are
        chosen so that none refuses it. Raise `TooFewClients` if that is impossible."""
        here = tuple(self._cohort[position] for position in sorted(self._members - self._gone))
        need = max(self._least, self._table[kind].least_roster)
        chosen = set(self._repeats.roster(kind, payload, here, need=need))
        return PositionSet(position for position, member in enumerate(self._cohort) if member in chosen)

    def _ids(self, positions: PositionSet) -> tuple[int, ...]:
        return tuple(self._cohort[position] for position in positions)

    def _abandon(self, adding: SumInProgress) -> None:
        """Notify the clients that are still present that no total of this sum was released."""
        remaining = set(adding.roster) - self._gone
        for position in self._positions(self._stage, remaining, adding.query.sum_index):
            self._plan.listener(self._cohort[position], Abandoned(adding.query.sum_index))

    def _check_roster(self, roster: PositionSet, kind: str, round_number: int) -> None:
        """Raise `SumFailed` if too few clients can be asked, or one left since a sum of the same vector."""
        if roster & self._gone:
            self._agenda.close(kind, round_number)
            raise CohortChanged("a client of this group has left; its last total stands")
        least = max(self._least, self._table[kind].least_roster)
        if len(roster) < least:
            raise TooFewClients.only(len(roster), "are left", least)

    def _collect(self, adding: SumInProgress, asked: Mapping[int, int]) -> None:
        """Add the answers of the clients `asked` (their positions in the cohort, by id)."""
        self._plan.prepare(dict.fromkeys(asked, adding.asked))
        for member, position in asked.items():
            try:
                self._answer(adding, member)
            except PeerError as error:  # The client refuses the query and leaves.
                self._leave(position, Refusal.of(member, error))

    def _willing(self, adding: SumInProgress) -> dict[int, int]:
        """Return id -> cohort position of present clients that accept the query. Those that refuse leave."""
        willing: dict[int, int] = {}
        for position in self._positions(Stage.MASK, adding.roster, adding.query.sum_index):
            member = self._cohort[position]
            try:
                self._check_question(adding, member)
                willing[member] = position
            except PeerError as error:
                self._leave(position, Refusal.of(member, error))
        return willing

    def _leave(self, position: int, refusal: Refusal) -> None:
        self._gone.add(position)
        self.stats.refusals.append(refusal)

    def _check_question(self, adding: SumInProgress, member: int) -> None:
        """Raise `PeerError` if a real client with the memory of this one would refuse the query."""
        query, memory = adding.query, self._plan.memories[member]
        self._books[member].check_new(query.kind, query.round)
        client_checks.check_query_is_new(adding.content, memory)
        for sequence in self._repeats.sequences(query.kind, query.payload, later=self._later):
            least = self._policy.min_contributors
            if memory.sets.is_close(sequence, self._ids(adding.roster), least=least):
                refuse(sequence.rule, least)
        self._policy.budget.check(memory.spend, adding.charge)

    def _answer(self, adding: SumInProgress, member: int) -> None:
        values = self._plan.answer(member, adding.asked)
        if values is not None:
            adding.addition.add(member, values)
            self._record_answer(adding, member)

    def _record_answer(self, adding: SumInProgress, member: int) -> None:
        """Record, as the client does, that it answered: what that cost, and that it may not do so again."""
        query, content = adding.query, adding.content
        group = self._table.group_of(query.kind)
        entry = AnswerEntry(group=group, round_number=query.round, content=content, charge=adding.charge)
        self._plan.memories[member].remember_answer(entry, self._policy.budget)
        self._books[member].answer(query.kind, query.round)

    def _check_survivors(
        self, adding: SumInProgress, survivors: PositionSet, later: PositionSet | None
    ) -> None:
        least = max(self._least, adding.least_survivors)
        if len(survivors) < least:
            raise TooFewClients.only(len(survivors), "sent inputs", least)
        if later is not None and survivors != later:
            raise CohortChanged("a client left in the midst of a group")
        self._repeats.confirm(adding.query, self._ids(survivors), later=self._later)

    def _confirm(self, adding: SumInProgress, survivors: PositionSet) -> set[int]:
        """Simulate the stages after masking, and send `Confirmed` to the clients that stay to the end. Return
        their positions in the cohort. Raise `TooFewClients` if too few clients stay."""
        query, stayed = adding.query, set(survivors)
        if self._policy.trust is Trust.MALICIOUS:
            self._stage = Stage.CONFIRM
            stayed = set(self._positions(self._stage, stayed, query.sum_index))
            self._remember(query, stayed, survivors)
            self._check_enough(stayed, "confirmed")
        self._stage = Stage.REVEAL
        stayed = set(self._positions(self._stage, stayed, query.sum_index))
        if self._policy.trust is Trust.CURIOUS:
            self._remember(query, stayed, survivors)
        self.stats.revealed = len(stayed)
        for position in stayed:
            self._books[self._cohort[position]].confirm(query.kind, query.round, survivors)
            self.informed.add(self._cohort[position])
            self._plan.listener(self._cohort[position], Confirmed(query.sum_index, len(survivors)))
        self._check_enough(stayed, "revealed shares")
        return stayed

    def _remember(self, query: Query, stayed: set[int], survivors: PositionSet) -> None:
        """Record the survivors of a sum in the memories of the clients that `stayed`, where these compare the
        clients of successive sums."""
        sequences = self._repeats.sequences(query.kind, query.payload, later=self._later)
        if self._policy.min_difference:
            sequences += (kind_sequence(query.kind),)
        for sequence in sequences:
            for position in stayed:
                self._plan.memories[self._cohort[position]].sets.add(sequence, self._ids(survivors))

    def _check_enough(self, stayed: set[int], did: str) -> None:
        if len(stayed) < self._threshold:
            raise TooFewClients.only(len(stayed), did, self._threshold)

    def _here(self, member: int, stage: Stage, sum_index: int) -> bool:
        return not self._plan.absent(member, stage, sum_index)

    def _positions(self, stage: Stage, among: range | set[int] | PositionSet, sum_index: int) -> PositionSet:
        return PositionSet(k for k in sorted(among) if self._here(self._cohort[k], stage, sum_index))


class SumInProgress:
    """A sum in progress: its query, who is asked, what it costs, and the total so far of the answers."""

    def __init__(
        self,
        plan: SimulatedSessionPlan,
        cohort: tuple[int, ...],
        roster: PositionSet,
        query: Query,
        adjacency: Adjacency,
    ) -> None:
        self._positions = {member: position for position, member in enumerate(cohort)}
        self.roster = roster
        self.query = query
        self.content = content_digest(query.kind, query.payload)
        self._spec: SumSpec = plan.table[query.kind]
        self.charge = sum_charge(self._spec, roster=len(roster), adjacency=adjacency)
        setting = plan.setting
        self.encoded = EncodedSum.of(
            query.kind, self.content, cohort=len(cohort), roster=len(roster), seed=setting.insecure_seed
        )
        self.addition = Addition(self._spec, self.encoded, setting.tamper)
        self.asked = Asked(query.sum_index, query.round, query.kind, query.payload, self._spec, len(roster))

    @property
    def least_survivors(self) -> int:
        """Return how many clients must answer so that the noise is as large as planned; 0 without noise."""
        promise = self._spec.promise
        return len(self.roster) - promise.dropouts if promise is not None else 0

    def survivors(self) -> PositionSet:
        return PositionSet(self._positions[member] for member in self.addition.noise)
