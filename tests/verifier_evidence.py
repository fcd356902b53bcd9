"""Evidence of lies, checked by sections 13.4 and 13.5 of docs/protocol.md alone.

It shares no code with the package. `verify_evidence` raises `Rejected` unless the evidence proves that the
accused lied. It is stricter than a sound examiner has to be: statements, values and records are exactly those
that the specification lists.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tests.verifier_hybrid import HYBRID, mask_key, opened_deposit, pair_secret_tag
from tests.verifier_tools import (
    PRIME,
    Rejected,
    digest,
    framed,
    hkdf,
    is_signed,
    need,
    public,
    row_tag,
    share_hash,
    u32,
    unpack,
    value_at,
    word_at,
)

AGREEMENTS = {"x25519": 0, HYBRID: 1184}  # bytes of a KEM key in an advert
INVITATION = [int, int, bytes, str, str, int, bytes, bytes, bytes]  # version, type, context and so on
KEY_LIST = [int, int, bytes, int, bytes]
FIELDS = {"share tags": 2, "deposit": 3, "masked input": 9, "reveal": 11}  # that clients sign


class SumShape(NamedTuple):
    """What evidence depends on in a spec: the bytes of key stream before the word of the hidden count, and
    the seeds of removable noise of each client."""

    count_offset: int
    seeds: int


class Statement(NamedTuple):
    signer: int
    purpose: str
    signature: bytes
    fields: list[bytes]


def verify_evidence(
    evidence: bytes,
    *,
    registry_keys: Mapping[int, bytes],
    registry_digest: bytes,
    specs: Mapping[bytes, SumShape],
    table_digest: bytes,
    corrupt: int,
) -> None:
    """Raise `Rejected` unless `evidence` proves that the accused lied. `registry_keys` has the Ed25519 keys
    by id, `specs` the sums of the table by the digests of their specs. `corrupt` is `f` of 13.4."""
    try:
        case = Case(evidence, registry_keys, registry_digest, specs, table_digest, corrupt)
        PROOFS[case.offence](case)
    except (ValueError, LookupError) as error:  # what cannot be read
        raise Rejected(f"unreadable evidence: {error}") from None


class Case:
    """Evidence whose session is known, and whose statements are signed."""

    def __init__(self, evidence: bytes, keys: Mapping[int, bytes], registry: bytes,
                 specs: Mapping[bytes, SumShape], table: bytes, corrupt: int) -> None:  # fmt: skip
        offence, accused, self.invitation, key_list, statements, values = items(evidence)
        self.offence, self.accused = offence.decode("ascii"), number(accused)
        self.values, self.keys, self.specs, self.corrupt = items(values), keys, specs, corrupt
        self.seeds = max(shape.seeds for shape in specs.values())
        self.set_up(key_list, registry, table)
        self.statements = [self.statement(each) for each in items(statements)]

    def set_up(self, key_list: bytes, registry: bytes, table: bytes) -> None:
        version, kind, context, trust, agreement, sums, *digests, _nonce = frame(self.invitation, INVITATION)
        need([version, kind, context, trust] == [2, 1, b"", "malicious_server"], "no signed invitation")
        need(digests == [table, registry], "another table or registry")
        self.hybrid, self.sums = agreement == HYBRID, sums
        version, kind, context, self.threshold, adverts = frame(key_list, KEY_LIST)
        invited = digest("invitation", self.invitation)
        need([version, kind, context] == [2, 2, invited], "no key list for this invitation")
        self.session = digest("session", self.invitation, key_list)
        self.keys_at = 36 + AGREEMENTS[agreement]
        size = self.keys_at + (64 + 32 * self.seeds) * sums + 64
        self.adverts = {int.from_bytes(row[:4], "big"): row for row in records(adverts, size)}
        self.ids = list(self.adverts)
        own = self.adverts[self.accused]
        self.check_signature(self.accused, "advert", own[-64:], [invited, own[:-64]])

    def check_signature(self, signer: int, purpose: str, signature: bytes, fields: list[bytes]) -> None:
        text = framed(f"signature: {purpose}", *fields)
        need(is_signed(self.keys[signer], signature, text), f"a bad signature for {purpose!r}")

    def statement(self, data: bytes) -> Statement:
        signer, purpose, signature, *fields = items(data)
        found = Statement(number(signer), purpose.decode("ascii"), signature, fields)
        need(len(fields) == FIELDS[found.purpose] and fields[0] == self.session, "another statement")
        self.check_signature(found.signer, found.purpose, signature, fields)
        return found

    def said(self, *wanted: str) -> list[list[bytes]]:
        """The fields of all statements, which are for these purposes; all but `share tags` by the accused."""
        need([each.purpose for each in self.statements] == list(wanted), "other statements")
        own = [
            each for each in self.statements if each.signer == self.accused or each.purpose == "share tags"
        ]
        need(own == self.statements, "a statement of another client")
        return [each.fields for each in self.statements]

    def opens(self, owner: int, index: int, column: int, secret: bytes) -> bool:
        """Whether `secret` is that of a client's advert, in a column of its rows of shares."""
        need(index < self.sums and len(secret) == 32, "no such secret")
        advert = self.adverts[owner]
        if column == 1:
            at = self.keys_at + 32 * index
            return public(mask_key(secret, self.hybrid).hex()) == advert[at : at + 32]
        at = self.keys_at + 32 * self.sums
        if column == 0:
            at, expected = at + 32 * index, digest("self mask commitment", u32(owner), u32(index), secret)
        else:
            at += 32 * (self.sums + index * self.seeds + column - 2)
            expected = digest("noise commitment", u32(owner), u32(index), u32(column - 1), secret)
        return advert[at : at + 32] == expected

    def members(self, bitmap: bytes) -> list[int]:
        bits = int.from_bytes(bitmap, "little")
        need(
            len(bitmap) == (len(self.ids) + 7) // 8 and bits >> len(self.ids) == 0, "no bitmap of the cohort"
        )
        return [member for at, member in enumerate(self.ids) if bits >> at & 1]

    def words(self, said: Statement) -> dict[int, bytes]:
        """The words of the signer's masked input, by the other end of the pair."""
        roster, words = self.members(said.fields[4]), said.fields[8]
        need(said.signer in roster, "an input of a client that was not asked")
        others = [member for member in roster if member != said.signer]
        need(len(words) == 8 * len(others), "other words")
        return {member: words[8 * k : 8 * k + 8] for k, member in enumerate(others)}

    def word(self, fields: list[bytes], material: bytes, purpose: str, *ids: int) -> bytes:
        """What the mask of a sum adds to the hidden count, from its key material."""
        session, index, query, spec, roster = fields[:5]
        cohort = digest("cohort", u32(*self.ids))
        context = digest("mask context", session, index, query, spec, cohort, roster)
        seed = hkdf(material, session, framed(purpose, context, *map(u32, ids)))
        return word_at(seed, self.specs[spec].count_offset)


# --- encodings ---------------------------------------------------------------------------------------


def items(data: bytes) -> list[bytes]:
    """The items of a list, each of which follows its length."""
    found, at = [], 0
    while at < len(data):
        start = at + 4
        need(start <= len(data), "a length that is cut off")
        at = start + number(data[at:start])
        need(at <= len(data), "an item that is cut off")
        found.append(data[start:at])
    return found


def number(data: bytes) -> int:
    need(len(data) == 4, "no number of four bytes")
    return int.from_bytes(data, "big")


def frame(data: bytes, types: list[type]) -> list[Any]:
    values = unpack(data)
    need(list(map(type, values)) == types, "a frame of another type")
    return values


def records(data: bytes, size: int) -> list[bytes]:
    """Records of one size, whose ids ascend."""
    need(len(data) % size == 0, "records of another length")
    rows = [data[at : at + size] for at in range(0, len(data), size)]
    need(all(one[:4] < other[:4] for one, other in pairwise(rows)), "records out of order")
    return rows


def accepted_tags(blob: bytes, receipt: bytes) -> dict[int, bytes]:
    """The digests of the tags that a holder accepted, by dealer, if `receipt` is of these."""
    rows = records(blob, 36)
    need(digest("receipt", *rows) == receipt, "another receipt")
    return {number(row[:4]): row[4:] for row in rows}


# --- offences ----------------------------------------------------------------------------------------


def wrong_share(case: Case) -> None:
    (_, tags), fields = case.said("share tags", "reveal")
    dealer, (blob,) = case.statements[0].signer, case.values
    index, spec, roster, survivors, surplus, receipt, dealers, shares, hidden = (fields[1], *fields[3:])
    k = number(index)
    need(k < case.sums and spec in case.specs and bool(case.members(roster)), "no such sum")
    need(len(tags) == 16 * case.sums * len(case.ids), "other tags")
    at = 16 * case.sums * case.ids.index(case.accused)
    mine = tags[at : at + 16 * case.sums]
    accepted = accepted_tags(blob, receipt)
    need(accepted[dealer] == digest("share tags", mine), "tags that the accused did not accept")
    layers = list(surplus)
    need(layers == sorted(set(layers)) and set(layers) <= set(range(1, 1 + case.seeds)), "no such seeds")
    alive, revealed = case.members(survivors), case.members(dealers)
    columns = {member: [0, *(1 + n for n in layers)] if member in alive else [1] for member in revealed}
    width, given = 2 + case.seeds, sum(map(len, columns.values()))
    need(len(shares) == 33 * given, "another number of shares")
    need(len(hidden) == 16 * (width * len(revealed) - given), "another number of hidden hashes")
    before = revealed[: revealed.index(dealer)]
    share_at, hidden_at = sum(len(columns[k]) for k in before), sum(width - len(columns[k]) for k in before)
    own = columns[dealer]
    row = [shares[33 * (share_at + n) :][:33] for n in range(len(own))]
    rest = [hidden[16 * (hidden_at + n) :][:16] for n in range(width - len(own))]
    tag = tag_of_row(case, dealer, case.accused, k, dict(zip(own, row, strict=True)), rest)
    outside = any(int.from_bytes(share, "big") >= PRIME for share in row)
    need(tag != mine[16 * k : 16 * k + 16] or outside, "a share that fits its tag")


def tag_of_row(
    case: Case, dealer: int, holder: int, index: int, shares: dict[int, bytes], hidden: list[bytes]
) -> bytes:
    """The tag of a row, some shares of which are known by their columns, and the others by their hashes."""
    rest = iter(hidden)
    return row_tag(
        share_hash(case.session, dealer, holder, index, column, shares[column])
        if column in shares
        else next(rest)
        for column in range(2 + case.seeds)
    )


def false_dealing(case: Case) -> None:
    ((_, tags),) = case.said("share tags")
    need(case.statements[0].signer == case.accused, "tags of another dealer")
    index, column, *rows = case.values
    k, c = number(index), number(column)
    need(k < case.sums and c < 2 + case.seeds, "no such shares")
    points: dict[int, int] = {}
    for row in rows:
        holder, share, hashes = number(row[:4]), row[4:37], row[37:]
        need(len(hashes) == 16 * (1 + case.seeds), "no row of shares")
        hidden = [hashes[at : at + 16] for at in range(0, len(hashes), 16)]
        place = case.ids.index(holder)
        at = 16 * (case.sums * place + k)
        tag = tag_of_row(case, case.accused, holder, k, {c: share}, hidden)
        need(tag == tags[at : at + 16], "a share that does not fit its tag")
        value = int.from_bytes(share, "big")
        need(value < PRIME and place + 1 not in points, "no share, or a second one of one holder")
        points[place + 1] = value
    need(len(points) == case.threshold, "not as many shares as open a secret")
    secret = value_at(0, points)
    proved = secret >> 256 or not case.opens(case.accused, k, c, secret.to_bytes(32, "big"))
    need(bool(proved), "the shares open the secret")


def false_count(case: Case) -> None:
    (fields,), (secret,) = case.said("masked input"), case.values
    index = number(fields[1])
    need(case.opens(case.accused, index, 0, secret), "not the secret of the self mask")
    need(len(fields[7]) == 8, "no masked count")
    count = int.from_bytes(fields[7], "little")
    count -= int.from_bytes(case.word(fields, secret, "self mask", case.accused), "little")
    for other, word in case.words(case.statements[0]).items():
        count -= int.from_bytes(word, "little") * (1 if other < case.accused else -1)
    need(count % 2**64 != 1, "the count is 1")


def false_word(case: Case) -> None:
    fields, *deposit = case.said("masked input", *(["deposit"] if case.hybrid else []))
    who, secret, *rest = case.values
    dropped, index = number(who), number(fields[1])
    need(case.opens(dropped, index, 1, secret), "not the mask key of the drop-out")
    need(dropped != case.accused, "nobody has a pair mask with itself")
    pair_secret = b""
    if case.hybrid:
        accepted, pair_secret = rest
        _padded, tag = deposited(case, deposit[0], accepted, dropped, index)
        need(len(pair_secret) == 32, "no pair secret")
        expected = pair_secret_tag(case.session, case.accused, dropped, index, pair_secret)
        need(tag == expected, "not the pair secret that the accused deposited")
    else:
        need(rest == [], "values that prove nothing")
    at = case.keys_at + 32 * index
    key = X25519PublicKey.from_public_bytes(case.adverts[case.accused][at : at + 32])
    shared = X25519PrivateKey.from_private_bytes(mask_key(secret, case.hybrid)).exchange(key)
    word = case.word(fields, shared + pair_secret, "pair mask", *sorted((case.accused, dropped)))
    need(case.words(case.statements[0])[dropped] != word, "the word is right")


def deposited(case: Case, fields: list[bytes], accepted: bytes, peer: int, index: int) -> tuple[bytes, bytes]:
    """What the accused deposited for a neighbour and a sum: the padded pair secret, and its tag."""
    need(case.hybrid and index < case.sums, "no such deposit")
    _session, receipt, deposits = fields
    peers = [member for member in accepted_tags(accepted, receipt) if member != case.accused]
    need(len(deposits) == 64 * case.sums * len(peers), "other deposits")
    at = 64 * (case.sums * peers.index(peer) + index)
    return deposits[at : at + 32], deposits[at + 32 : at + 64]


def false_deposit(case: Case) -> None:
    (fields,), (who, secret, accepted, which) = case.said("deposit"), case.values
    peer, index = number(who), number(which)
    need(case.opens(case.accused, index, 1, secret), "not the secret that the accused dealt")
    padded, tag = deposited(case, fields, accepted, peer, index)
    found = opened_deposit(padded, secret, case.session, case.accused, peer, index)
    need(pair_secret_tag(case.session, case.accused, peer, index, found) != tag, "the deposit opens")


def many_disputes(case: Case) -> None:
    need(case.values == [], "values that prove nothing")
    need({each.purpose for each in case.statements} == {"masked input"}, "other statements")
    own, *others = case.statements
    need(own.signer == case.accused and own.fields[3] in case.specs, "a statement of another client")
    need(number(own.fields[1]) < case.sums, "no such sum")
    words = case.words(own)
    for other in others:
        need(other.signer != case.accused and other.fields[:5] == own.fields[:5], "another sum")
        need(case.words(other)[case.accused] != words[other.signer], "the words agree")
    need(len({other.signer for other in others}) > case.corrupt, "as many disputes as clients may lie")


PROOFS: dict[str, Callable[[Case], None]] = {
    "wrong share": wrong_share,
    "false dealing": false_dealing,
    "false count": false_count,
    "false word": false_word,
    "false deposit": false_deposit,
    "many disputes": many_disputes,
}
