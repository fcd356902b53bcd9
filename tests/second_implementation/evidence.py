"""Evidence of a lie: what a server can show to anybody who has the registry and the table (section 13.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.second_implementation import crypto
from tests.second_implementation.crypto import SHARE, TAG, tagged
from tests.second_implementation.encoding import chunks, in_bitmap, listed, parse, places_of, u32, unlisted
from tests.second_implementation.noise import largest_seeds
from tests.second_implementation.records import (
    Layout,
    Network,
    complete_network,
    layout_of,
    place_tags,
    revealed_columns,
    sum_tag,
)
from tests.second_implementation.specs import Spec, Table, table_digest
from tests.second_implementation.unmask import Revealed, bare_count, fits_advert, opened


@dataclass(frozen=True)
class Statement:
    """Something that a client signed."""

    signer: int
    purpose: str
    signature: bytes
    fields: tuple[bytes, ...]

    def encoded(self) -> bytes:
        """The statement as a list."""
        return listed([u32(self.signer), self.purpose.encode("ascii"), self.signature, *self.fields])


@dataclass(frozen=True)
class Evidence:
    """The parts of evidence."""

    offence: str
    accused: int
    invitation: bytes
    key_list: bytes
    statements: tuple[Statement, ...]
    values: tuple[bytes, ...]

    def encoded(self) -> bytes:
        """The bytes of the evidence."""
        statements = listed(statement.encoded() for statement in self.statements)
        head = [self.offence.encode("ascii"), u32(self.accused), self.invitation, self.key_list]
        return listed([*head, statements, listed(self.values)])


def read_evidence(data: bytes) -> Evidence:
    """Take evidence apart."""
    offence, accused, invitation, key_list, statements, values = unlisted(data)
    return Evidence(
        offence.decode("ascii"),
        number(accused),
        invitation,
        key_list,
        tuple(_read_statement(item) for item in unlisted(statements)),
        tuple(unlisted(values)),
    )


def _read_statement(data: bytes) -> Statement:
    signer, purpose, signature, *fields = unlisted(data)
    return Statement(number(signer), purpose.decode("ascii"), signature, tuple(fields))


def number(data: bytes) -> int:
    """A `u32`."""
    assert len(data) == 4
    return int.from_bytes(data, "big")


class Court:
    """Who checks evidence: it has the registry, the table and `f`."""

    layout: Layout
    network: Network

    def __init__(self, keys: Mapping[int, bytes], registry: bytes, table: Table, liars: int) -> None:
        self.keys = keys
        self.registry = registry
        self.table = table
        self.specs = {spec.digest: spec for spec in table.values()}
        self.liars = liars

    def proves(self, evidence: Evidence) -> bool:
        """Whether the evidence proves its offence."""
        self._read_session(evidence)
        if not self._all_signed(evidence):
            return False
        offences: dict[str, Callable[[Evidence], bool]] = {
            "wrong share": self._wrong_share,
            "false dealing": self._false_dealing,
            "false count": self._false_count,
            "false word": self._false_word,
            "false deposit": self._false_deposit,
            "many disputes": self._many_disputes,
        }
        return offences[evidence.offence](evidence)

    def _read_session(self, evidence: Evidence) -> None:
        invitation, key_list = parse(evidence.invitation), parse(evidence.key_list)
        assert invitation.data(3) == table_digest(self.table)
        assert invitation.data(4) == self.registry
        self.layout = layout_of(
            invitation.text(0), invitation.text(1), invitation.number(2), largest_seeds(self.table)
        )
        self.network = complete_network(
            evidence.invitation, evidence.key_list, key_list.number(0), key_list.data(1), self.layout
        )

    def _all_signed(self, evidence: Evidence) -> bool:
        """The accused's advert and all statements are signed, and name this session."""
        advert = self.network.members[evidence.accused]
        body = advert.raw[: -len(advert.signature)]
        context = tagged("invitation", evidence.invitation)
        if not crypto.verifies(self.keys[advert.id], "advert", [context, body], advert.signature):
            return False
        return all(
            statement.fields[0] == self.network.session
            and crypto.verifies(
                self.keys[statement.signer], statement.purpose, statement.fields, statement.signature
            )
            for statement in evidence.statements
        )

    def _places(self, clients: bytes) -> list[int]:
        return [self.network.ids[place] for place in places_of(clients, self.network.n)]

    # --- Shares

    def _wrong_share(self, evidence: Evidence) -> bool:
        dealing, reveal = evidence.statements
        if not _are(evidence.statements, ["share tags", "reveal"]) or reveal.signer != evidence.accused:
            return False
        accepted = _accepted(evidence.values[0])
        place = self.network.ids.index(evidence.accused)
        tags = dealing.fields[1]
        digest = crypto.tags_digest(place_tags(tags, place, self.layout.sums))
        if crypto.receipt(accepted.items()) != reveal.fields[7] or accepted.get(dealing.signer) != digest:
            return False
        k = number(reveal.fields[1])
        row = self._revealed_row(reveal, dealing.signer)
        hashes = row.hashes(self.network.session, dealing.signer, reveal.signer, k, self.layout.columns)
        return crypto.row_tag(hashes) != sum_tag(tags, place, self.layout.sums, k)

    def _revealed_row(self, reveal: Statement, dealer: int) -> Revealed:
        survivors, removed = reveal.fields[5], list(reveal.fields[6])
        shares, hidden = chunks(reveal.fields[9], SHARE), chunks(reveal.fields[10], TAG)
        for client in self._places(reveal.fields[8]):
            shown = revealed_columns(in_bitmap(survivors, self.network.positions[client]), removed)
            rest = self.layout.columns - len(shown)
            if client == dealer:
                return Revealed(dict(zip(shown, shares, strict=False)), hidden[:rest])
            shares, hidden = shares[len(shown) :], hidden[rest:]
        raise AssertionError("the reveal does not cover the dealer")

    def _false_dealing(self, evidence: Evidence) -> bool:
        if not _are(evidence.statements, ["share tags"]) or evidence.statements[0].signer != evidence.accused:
            return False
        tags = evidence.statements[0].fields[1]
        k, column, points = number(evidence.values[0]), number(evidence.values[1]), {}
        for value in evidence.values[2:]:
            holder, share = number(value[:4]), value[4 : 4 + SHARE]
            row = Revealed({column: share}, chunks(value[4 + SHARE :], TAG))
            place = self.network.ids.index(holder)
            hashes = row.hashes(self.network.session, evidence.accused, holder, k, self.layout.columns)
            if crypto.row_tag(hashes) != sum_tag(tags, place, self.layout.sums, k):
                return False
            points[place] = share
        secret = crypto.recover(points)
        advert = self.network.members[evidence.accused]
        return len(points) == self.network.t and (
            secret is None or not fits_advert(advert, k, column, secret)
        )

    # --- Inputs

    def _spec(self, statement: Statement) -> Spec:
        return self.specs[statement.fields[3]]

    def _context(self, statement: Statement) -> bytes:
        """The mask context of a signed masked input."""
        _, k, query, spec, roster = statement.fields[:5]
        return crypto.mask_context(
            self.network.session, number(k), query, spec, self.network.cohort_digest, roster
        )

    def _words(self, statement: Statement) -> dict[int, int]:
        """The words of a signed masked input by neighbour."""
        peers = [client for client in self._places(statement.fields[4]) if client != statement.signer]
        words = [int.from_bytes(word, "little") for word in chunks(statement.fields[8], 8)]
        return dict(zip(peers, words, strict=True))

    def _false_count(self, evidence: Evidence) -> bool:
        (made,), (secret,) = evidence.statements, evidence.values
        k = number(made.fields[1])
        if not _are(evidence.statements, ["masked input"]) or made.signer != evidence.accused:
            return False
        if not fits_advert(self.network.members[made.signer], k, 0, secret):
            return False
        seed = crypto.self_seed(self.network.session, self._context(made), made.signer, secret)
        _, word = self._spec(made).mask(seed)
        count = int.from_bytes(made.fields[7], "little")
        return bare_count(made.signer, count, word, self._words(made)) != 1

    def _false_word(self, evidence: Evidence) -> bool:
        purposes = ["masked input", *(["deposit"] if self.layout.hybrid else [])]
        if not _are(evidence.statements, purposes):
            return False
        if any(statement.signer != evidence.accused for statement in evidence.statements):
            return False
        made, missing, dealt = evidence.statements[0], number(evidence.values[0]), evidence.values[1]
        k, pair_secret = number(made.fields[1]), b""
        if not fits_advert(self.network.members[missing], k, 1, dealt):
            return False
        if self.layout.hybrid:
            accepted, pair_secret = evidence.values[2:]
            record = self._deposited(evidence.statements[1], accepted, missing, k)
            tag = crypto.pair_secret_tag(self.network.session, evidence.accused, missing, k, pair_secret)
            if record is None or record[32:] != tag:
                return False
        secret = crypto.mask_secret(dealt, self.layout.hybrid)
        agreed = crypto.agree(secret, self.network.members[evidence.accused].mask_keys[k])
        seed = crypto.pair_seed(
            self.network.session, self._context(made), evidence.accused, missing, agreed, pair_secret
        )
        return self._words(made)[missing] != self._spec(made).mask(seed)[1]

    # --- Deposits

    def _deposited(self, deposit: Statement, accepted: bytes, peer: int, k: int) -> bytes | None:
        """The record that a client deposited for a neighbour, if `accepted` fits its receipt."""
        dealers = _accepted(accepted)
        if crypto.receipt(dealers.items()) != deposit.fields[1]:
            return None
        peers = [dealer for dealer in dealers if dealer != deposit.signer]
        records = chunks(deposit.fields[2], 64 * self.layout.sums)
        return chunks(dict(zip(peers, records, strict=True))[peer], 64)[k]

    def _false_deposit(self, evidence: Evidence) -> bool:
        (deposit,), (peer_id, dealt, accepted, index) = evidence.statements, evidence.values
        if not _are(evidence.statements, ["deposit"]) or deposit.signer != evidence.accused:
            return False
        k, peer, owner, session = number(index), number(peer_id), evidence.accused, self.network.session
        record = self._deposited(deposit, accepted, peer, k)
        if record is None or not fits_advert(self.network.members[owner], k, 1, dealt):
            return False
        return opened(session, dealt, owner, peer, k, record) is None

    # --- Disputes

    def _many_disputes(self, evidence: Evidence) -> bool:
        own, *others = evidence.statements
        if not _are(evidence.statements, ["masked input"] * len(evidence.statements)):
            return False
        signers = {statement.signer for statement in others} - {evidence.accused}
        words = self._words(own)
        return (
            own.signer == evidence.accused
            and len(signers) == len(others) > self.liars
            and all(other.fields[:5] == own.fields[:5] for other in others)
            and all(self._words(other)[own.signer] != words[other.signer] for other in others)
        )


def _are(statements: Sequence[Statement], purposes: Sequence[str]) -> bool:
    return [statement.purpose for statement in statements] == list(purposes)


def _accepted(data: bytes) -> dict[int, bytes]:
    """Dealers and digests, as in a receipt."""
    return {number(record[:4]): record[4:] for record in chunks(data, 36)}
