"""The server: the frames that it sends, from the frames that it receives (sections 8, 9 and 13)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tests.second_implementation import crypto, lies
from tests.second_implementation.accusation import accuse
from tests.second_implementation.crypto import tagged
from tests.second_implementation.encoding import Message, bitmap, chunks, frame, parse, places_of, u32
from tests.second_implementation.evidence import Evidence
from tests.second_implementation.graph import Cohort, Policy, complete_threshold, needed, ring_parameters
from tests.second_implementation.noise import largest_seeds
from tests.second_implementation.records import (
    Advert,
    Layout,
    layout_of,
    place_tags,
    read_advert,
    ring_session,
)
from tests.second_implementation.specs import Table, table_digest
from tests.second_implementation.unmask import Failed, Revealed, Sum, Total, read_reveal, unmask


@dataclass(frozen=True)
class Sent:
    """A frame of the server, and the clients that it is meant for."""

    receivers: tuple[int, ...]
    frame: bytes


@dataclass(frozen=True)
class Setting:
    """What the operator of a server chose for one session, and its random choices."""

    trust: str
    agreement: str
    sums: int
    policy: Policy
    table: Table
    registry: bytes
    nonce: bytes
    ring: bool
    order: tuple[int, ...]
    named: bool


@dataclass
class Dealing:
    """What one client sent in `Shares`."""

    envelopes: dict[int, bytes]
    signature: bytes
    tags: bytes
    tags_signature: bytes


class Server:
    """An honest server of one session."""

    cohort: Cohort
    session: bytes
    sum: Sum

    def __init__(self, setting: Setting, invited: Collection[int]) -> None:
        self.setting = setting
        self.stage = "inviting"
        self.invited = tuple(sorted(invited))
        # The clients that are asked, and those that left or were excluded: neither need hold of a client.
        self.present = set(invited)
        self.gone: set[int] = set()
        self.layout: Layout = layout_of(
            setting.trust, setting.agreement, setting.sums, largest_seeds(setting.table)
        )
        self.invitation = frame(
            "Invitation",
            b"",
            setting.trust,
            setting.agreement,
            setting.sums,
            table_digest(setting.table),
            setting.registry,
            setting.nonce,
        )
        self.key_list = b""
        self.answers: dict[int, Message] = {}
        self.adverts: dict[int, Advert] = {}
        self.dealings: dict[int, Dealing] = {}
        self.lost: dict[int, set[int]] = {}
        self.deposits: dict[int, dict[int, list[bytes]]] = {}
        self.deposit_messages: dict[int, Message] = {}
        self.next_sum = 0
        # The total of each sum, or the name of the error if there is none.
        self.totals: list[Total | str] = []
        self.groups: dict[tuple[str, int], list[int]] = {}
        # Who was convicted or excluded in which sum, with the evidence if there is any.
        self.convictions: list[tuple[int, lies.Conviction, Evidence | None]] = []

    # --- Frames received

    def invite(self) -> list[Sent]:
        """The first frame of the session."""
        return [Sent(self.invited, self.invitation)]

    def receive(self, sender: int, data: bytes) -> None:
        """Take a frame of a client."""
        message = parse(data)
        if sender in self.gone:
            return
        if message.name == "Leave":
            self._remove([sender])
        elif message.name == "Lost":
            members = self.cohort.neighbourhood(sender)
            self.lost[sender] = {members[place] for place in places_of(message.data(0), len(members))}
        elif message.name != "Decline":
            self.answers[sender] = message
            if message.name == "Reveal":
                self._check_reveal(sender, message)

    def _check_reveal(self, sender: int, message: Message) -> None:
        """Convict a holder whose rows do not all fit their tags."""
        self.sum.messages[sender, message.name] = message
        rows = self._read_reveal(sender, message).items()
        wrong = [dealer for dealer, row in rows if not self._row_fits(sender, dealer, row)]
        if wrong:
            del self.answers[sender]
            self._convict([lies.Conviction(sender, "wrong share", tuple(wrong))])

    def _row_fits(self, holder: int, dealer: int, row: Revealed) -> bool:
        """Whether a revealed row fits the tag that its dealer published."""
        hashes = row.hashes(self.session, dealer, holder, self.sum.k, self.layout.columns)
        place = self.cohort.neighbourhood(dealer).index(holder)
        tags = place_tags(self.dealings[dealer].tags, place, self.layout.sums)
        return crypto.row_tag(hashes) == chunks(tags, crypto.TAG)[self.sum.k]

    def _read_reveal(self, sender: int, message: Message) -> dict[int, Revealed]:
        members = self.cohort.neighbourhood(sender)
        return read_reveal(self.sum, members, self.layout.columns, message)

    # --- Closing a stage

    def close(self) -> list[Sent]:
        """Close the stage: what the server sends then."""
        answers, self.answers = dict(sorted(self.answers.items())), {}
        stages = {
            "inviting": self._close_inviting,
            "sharing": self._close_sharing,
            "depositing": self._close_depositing,
            "masking": self._close_masking,
            "confirming": self._close_confirming,
            "unmasking": self._close_unmasking,
        }
        return stages[self.stage](answers)

    def _close_inviting(self, answers: Mapping[int, Message]) -> list[Sent]:
        self.adverts = {i: read_advert(m.data(0), self.layout) for i, m in answers.items()}
        self.present = set(self.adverts)
        self.stage = "sharing"
        context = tagged("invitation", self.invitation)
        return self._neighbours(context) if self.setting.ring else self._key_list(context)

    def _key_list(self, context: bytes) -> list[Sent]:
        ids = tuple(self.adverts)
        threshold = complete_threshold(self.setting.policy, len(ids))
        self.cohort = Cohort(ids, None, len(ids) - 1, threshold)
        adverts = b"".join(advert.raw for advert in self.adverts.values())
        self.key_list = frame("KeyList", context, threshold, adverts)
        self.session = tagged("session", self.invitation, self.key_list)
        self.cohort_digest = tagged("cohort", b"".join(map(u32, ids)))
        return [Sent(ids, self.key_list)]

    def _neighbours(self, context: bytes) -> list[Sent]:
        ids = tuple(self.adverts)
        n = len(ids)
        d, t = ring_parameters(self.setting.policy, n)
        self.cohort = Cohort(ids, self.setting.order, d, t)
        self.cohort_digest = tagged("ring", *(advert.raw for advert in self.adverts.values()))
        named = b"".join(map(u32, ids)) if self.setting.named else b""
        self.session = ring_session(self.invitation, n, d, t, self.cohort_digest, named)
        sent = []
        for client in ids:
            members = self.cohort.neighbourhood(client)
            records = b"".join(u32(ids.index(i)) + self.adverts[i].raw for i in members)
            data = frame("Neighbours", context, n, t, self.cohort_digest, records, named)
            sent.append(Sent((client,), data))
        return sent

    def need(self) -> int:
        """`need` of 6.4."""
        cohort = self.cohort
        return needed(self.setting.policy, cohort.n, cohort.d, cohort.t, cohort.order is not None)

    def _close_sharing(self, answers: Mapping[int, Message]) -> list[Sent]:
        for dealer, message in answers.items():
            others = self.cohort.neighbours(dealer)
            envelopes = chunks(message.data(0), self.layout.envelope)
            self.dealings[dealer] = Dealing(
                dict(zip(others, envelopes, strict=True)), message.data(1), message.data(2), message.data(3)
            )
        self.present &= set(self.dealings)
        self.present -= self.cohort.stranded(self.present)
        assert len(self.present) >= self.need()
        self.stage = "depositing" if self.layout.hybrid else "ready"
        return [Sent((i,), frame("Delivery", self.session, self._parcels(i))) for i in sorted(self.present)]

    def _parcels(self, receiver: int) -> bytes:
        parcels = b""
        for sender in self.cohort.neighbours(receiver):
            if sender in self.present:
                dealing = self.dealings[sender]
                digest = self.tags_digest(sender, receiver)
                parcels += u32(sender) + digest + dealing.envelopes[receiver] + dealing.signature
        return parcels

    def tags_digest(self, dealer: int, holder: int) -> bytes:
        """The digest of a dealer's tags for a holder."""
        place = self.cohort.neighbourhood(dealer).index(holder)
        return crypto.tags_digest(place_tags(self.dealings[dealer].tags, place, self.layout.sums))

    def accepted(self, holder: int) -> dict[int, bytes]:
        """The dealers whose shares a holder accepted, with the digests of their tags, as in its receipt."""
        delivered = [i for i in self.cohort.neighbourhood(holder) if i in self.dealings]
        kept = [i for i in delivered if i not in self.lost.get(holder, set())]
        return {dealer: self.tags_digest(dealer, holder) for dealer in kept}

    def _close_depositing(self, answers: Mapping[int, Message]) -> list[Sent]:
        for owner, message in answers.items():
            peers = [i for i in self.accepted(owner) if i != owner]
            records = chunks(message.data(0), 64 * self.layout.sums)
            self.deposits[owner] = {
                peer: chunks(record, 64) for peer, record in zip(peers, records, strict=True)
            }
        self.deposit_messages = dict(answers)
        self.present &= set(answers)
        self.stage = "ready"
        self._convict(lies.settle(lies.deposit_disputes(self.deposits), self.liars()))
        return []

    def liars(self) -> int:
        """`f` of 13.4."""
        return max(1, min(self.setting.policy.corrupt, self.cohort.t - 1))

    def _convict(self, convictions: list[lies.Conviction]) -> None:
        for conviction in convictions:
            self.convictions.append((self.next_sum - 1, conviction, accuse(self, conviction)))
            self._remove([conviction.client])

    def _remove(self, clients: Collection[int]) -> None:
        self.gone |= set(clients)
        self.present -= set(clients)

    # --- A sum

    def ask(self, kind: str, round_number: int, payload: bytes) -> list[Sent]:
        """Ask a sum of all clients that are present, or of a group's last survivors."""
        spec = self.setting.table[kind]
        group = (spec.group or kind, round_number)
        self.present -= self.cohort.stranded(self.present)
        later = self.groups.get(group)
        roster = sorted(self.present) if later is None else later
        k, self.next_sum = self.next_sum, self.next_sum + 1
        marked = self.bitmap(roster)
        data = frame("Query", self.session, k, round_number, kind, marked, payload)
        query = tagged("query", data)
        context = crypto.mask_context(self.session, k, query, spec.digest, self.cohort_digest, marked)
        self.sum = Sum(k, kind, spec, group, roster, later is not None, query, context)
        self.stage = "masking"
        return [Sent(tuple(roster), data)]

    def bitmap(self, clients: Collection[int]) -> bytes:
        """The bitmap of some clients over the cohort."""
        return bitmap([self.cohort.ids.index(client) for client in clients], self.cohort.n)

    def _close_masking(self, answers: Mapping[int, Message]) -> list[Sent]:
        self.sum.read_inputs(answers, self.cohort)
        if not self._enough():
            return self._fail("TooFewClients")
        disputes = lies.word_disputes(self.sum.words)
        if disputes:
            self._convict(lies.settle(disputes, self.liars()))
            return self._fail("Disputed")
        survivors = self.sum.survivors
        self.stage = "confirming" if self.layout.signed else "unmasking"
        data = frame("Survivors", self.session, self.sum.k, self.bitmap(survivors))
        return [Sent(tuple(survivors), data)]

    def _enough(self) -> bool:
        """Whether the inputs are enough to go on (13.3)."""
        current, cohort = self.sum, self.cohort
        survivors, missing = current.survivors, len(current.roster) - len(current.survivors)
        promise = current.spec.promise
        return (
            len(survivors) >= self.need()
            and (promise is None or missing <= promise.dropouts)
            and (not current.later or missing == 0)
            and cohort.serves(survivors, current.roster)
            and cohort.connected(survivors)
        )

    def _fail(self, reason: str) -> list[Sent]:
        """Give up the sum, and close its group."""
        self.stage = "ready"
        self.totals.append(reason)
        receivers = tuple(client for client in self.sum.roster if client not in self.gone)
        return [Sent(receivers, frame("GroupClosed", self.session, self.sum.k))]

    def _close_confirming(self, answers: Mapping[int, Message]) -> list[Sent]:
        if len(answers) < self.cohort.t:
            return self._fail("TooFewClients")
        records = b"".join(u32(client) + message.data(1) for client, message in answers.items())
        self.stage = "unmasking"
        return [Sent(tuple(answers), frame("Confirmations", self.session, self.sum.k, records))]

    def _close_unmasking(self, answers: Mapping[int, Message]) -> list[Sent]:
        self.sum.reveals = {client: self._read_reveal(client, message) for client, message in answers.items()}
        if not self.cohort.serves(answers, self.sum.roster):
            return self._fail("TooFewClients")
        try:
            total = unmask(self.sum, self.cohort, self.adverts, self.deposits, self.session)
        except Failed as failure:
            self._convict(failure.convictions(self.liars(), self.lost))
            return self._fail(failure.reason)
        self.totals.append(total)
        self.groups[self.sum.group] = self.sum.survivors
        self.stage = "ready"
        return []

    def end(self) -> list[Sent]:
        """Say farewell to all that neither left nor were excluded, whether they still take part or not."""
        context = tagged("invitation", self.invitation)
        receivers = tuple(client for client in self.invited if client not in self.gone)
        return [Sent(receivers, frame("Farewell", context))]
