"""Checks evidence of a lie. `examine` raises `Unproven` unless the evidence proves that the accused lied.

The examiner trusts the registry, the table of sums and the number of clients that may lie. It trusts neither
the server that collected the evidence nor any single client. Statements of others count against the accused
only if more clients made them than may lie, or if the accused has accepted them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from secagg import messages as m
from secagg.bitmap import PositionSet
from secagg.cohort_members import Cohort, invitation_digest, session_id
from secagg.errors import SERVER, SecaggError, Unproven
from secagg.evidence import Evidence, Offence, Statement
from secagg.hashing import DIGEST_BYTES
from secagg.hybrid_keys import (
    DEPOSIT_BYTES,
    PAIR_SECRET_BYTES,
    KeyAgreement,
    mask_key_of,
    padded,
    secret_tag,
)
from secagg.identity_registry import Registry
from secagg.keys import noise_commitment, public_key, seed_commitment, verify
from secagg.message_records import ID_BYTES, Advert, Format, parse_adverts
from secagg.query_context import Question
from secagg.self_and_pair_masks import masks_with, own_count_word, pair_count_words
from secagg.shamir import SHARE_BYTES, interpolate, lagrange_weights, shares_from_bytes
from secagg.share_tags import (
    TAG_BYTES,
    DealtRow,
    RevealedRow,
    cut_rows,
    receipt,
    revealed_columns,
    tags_digest,
)
from secagg.sum_spec import COUNT_BITS, COUNT_BYTES, Table
from secagg.trust_levels import MAX_COMPLETE, liars_around

_LIMIT: Final = 1 << 30
_SUM_FIELDS: Final = 5  # session, sum, query, spec and roster: the first fields of statements about a sum


def examine(evidence: Evidence, *, registry: Registry, table: Table, corrupt: int) -> None:
    """Raise `Unproven` unless `evidence` proves that the accused lied, if at most `corrupt` clients lie."""
    try:
        case = _Case.of(evidence, registry, table, corrupt)
        case.check_numbers()
        _PROOFS[evidence.offence](case)
    except Unproven:
        raise
    except (SecaggError, ValueError, LookupError) as error:
        raise Unproven(f"the evidence does not hold: {error}") from None


@dataclass(frozen=True)
class _Case:
    """Evidence whose session is known and whose statements are all signed."""

    evidence: Evidence
    table: Table
    corrupt: int
    form: Format
    cohort: Cohort

    @classmethod
    def of(cls, evidence: Evidence, registry: Registry, table: Table, corrupt: int) -> _Case:
        invitation = m.decode(evidence.invitation, sender=SERVER, limit=_LIMIT)
        keys = m.decode(evidence.key_list, sender=SERVER, limit=_LIMIT)
        _need(isinstance(invitation, m.Invitation) and isinstance(keys, m.KeyList), "no set-up of a session")
        assert isinstance(invitation, m.Invitation)
        assert isinstance(keys, m.KeyList)
        same = (invitation.registry, invitation.table) == (registry.digest, table.digest)
        _need(same, "another registry or table")
        agreement = KeyAgreement(invitation.agreement)
        form = Format(invitation.sums, signed=True, seeds=table.seeds, agreement=agreement)
        adverts = parse_adverts(keys.adverts, form, most=MAX_COMPLETE)
        cohort = Cohort(session_id(evidence.invitation, evidence.key_list), keys.threshold, adverts)
        case = cls(evidence, table, corrupt, form, cohort)
        case._check_signatures(registry)
        return case

    def _check_signatures(self, registry: Registry) -> None:
        own = self.advert
        key = registry.members[own.member]
        context = invitation_digest(self.evidence.invitation)
        verify(key, own.signature, "advert", context, own.body, peer=own.member)
        for each in self.evidence.statements:
            _need(each.fields[0] == self.cohort.session, "a statement about another session")
            key = registry.members[each.signer]
            verify(key, each.signature, each.purpose, *each.fields, peer=each.signer)

    def check_numbers(self) -> None:
        """Raise `Unproven` unless there are as many statements and values as the offence needs, so that
        nothing is added to a proof."""
        hybrid = self.form.is_hybrid
        statements, values = {
            Offence.WRONG_SHARE: (2, 1),
            Offence.FALSE_DEALING: (1, 2 + self.cohort.threshold),
            Offence.FALSE_COUNT: (1, 1),
            Offence.FALSE_WORD: (2, 4) if hybrid else (1, 2),
            Offence.FALSE_DEPOSIT: (1, 4),
            Offence.MANY_DISPUTES: (len({each.signer for each in self.evidence.statements}), 0),
        }[self.evidence.offence]
        found = (len(self.evidence.statements), len(self.evidence.values))
        _need(found == (statements, values), "not the statements and values of this offence")

    @property
    def advert(self) -> Advert:
        return self.cohort.adverts[self.position]

    @property
    def position(self) -> int:
        return self.cohort.position[self.evidence.accused]

    def statement(self, number: int, purpose: str, *, by_accused: bool | None = True) -> Statement:
        """Return a statement of the evidence, which has `purpose` and is the accused's, or another's (None:
        anybody's)."""
        found = self.evidence.statements[number]
        _need(found.purpose == purpose, "a statement for another purpose")
        signed_by_accused = found.signer == self.evidence.accused
        _need(by_accused in (None, signed_by_accused), "a statement of another client")
        return found

    def opens(self, position: int, index: int, column: int, secret: bytes) -> bool:
        """Return whether `secret` is the one that a client's advert commits to in this column of shares."""
        advert = self.cohort.adverts[position]
        if column == 0:
            return seed_commitment(secret, owner=advert.member, sum_index=index) == advert.commitments[index]
        if column == 1:
            return public_key(mask_key_of(secret, self.form.agreement)) == advert.mask_keys[index]
        layer = column - 1
        commitment = noise_commitment(secret, owner=advert.member, sum_index=index, layer=layer)
        return commitment == advert.noise_commitment(index, layer)

    def question(self, said: Statement) -> Question:
        """Return the sum that a statement is about. Its query is unknown but for its digest and roster."""
        session, index, query, spec, roster = said.fields[:_SUM_FIELDS]
        specs = {each.digest: each for each in self.table.values()}
        stub = m.Query(session, int.from_bytes(index, "big"), 0, "unknown", roster, b"")
        asked = PositionSet.parse(roster, self.cohort.size, sender=SERVER)
        return Question(self.cohort, specs[spec], stub, query, asked, later_in_group=False)


def _need(condition: bool, why: str) -> None:
    if not condition:
        raise Unproven(why)


def _number(value: bytes) -> int:
    _need(len(value) == ID_BYTES, "not a number of four bytes")
    return int.from_bytes(value, "big")


def _wrong_share(case: _Case) -> None:
    """The accused accepted the tags of a dealer, and revealed a share that does not fit them, or that is
    outside the field, so that it is never accepted."""
    published, reveal = case.statement(0, "share tags", by_accused=None), case.statement(1, "reveal")
    tags = published.fields[1]
    size = case.form.tags_bytes
    mine = tags[case.position * size : (case.position + 1) * size]
    accepted = _records(case.evidence.values[0])
    _need(accepted.get(published.signer) == tags_digest(mine), "the accused has not accepted these tags")
    survivors_map, surplus, said, dealers, shares, hidden = reveal.fields[_SUM_FIELDS:]
    _need(receipt(accepted.items()) == said, "not what the accused accepted")
    question = case.question(reveal)
    members = case.cohort.size
    survivors = PositionSet.parse(survivors_map, members, sender=SERVER)
    _need(all(1 <= layer <= case.form.seeds for layer in surplus), "there are no such noise seeds")
    taken = revealed_columns(surplus)
    revealed = list(PositionSet.parse(dealers, members, sender=SERVER))
    columns = [taken[each in survivors] for each in revealed]
    rows = cut_rows(shares, hidden, columns, width=2 + case.form.seeds)
    at = revealed.index(case.cohort.position[published.signer])
    dealt = DealtRow(case.cohort.session, published.signer, case.evidence.accused, question.sum_index)
    _need(rows is not None, "not the shares that it names")
    assert rows is not None
    start = question.sum_index * TAG_BYTES
    fits = dealt.tag_of(rows[at], columns[at]) == mine[start : start + TAG_BYTES]
    _need(not fits or shares_from_bytes(rows[at].shares) is None, "the share fits its tag")


def _records(blob: bytes) -> dict[int, bytes]:
    """Return the digests of tags in `blob`, by dealer. There is one way to write them: in order of id."""
    step = ID_BYTES + DIGEST_BYTES
    rows = [blob[at : at + step] for at in range(0, len(blob), step)]
    found = {_number(row[:ID_BYTES]): row[ID_BYTES:] for row in rows}
    _need(len(blob) % step == 0 and list(found) == sorted(found) and len(found) == len(rows), "no receipt")
    return found


def _false_dealing(case: _Case) -> None:
    """Shares that fit the tags of the accused do not open its commitment or public key."""
    tags = case.statement(0, "share tags").fields[1]
    index, column = map(_number, case.evidence.values[:2])
    shares: dict[int, int] = {}
    for value in case.evidence.values[2:]:
        holder = int.from_bytes(value[:ID_BYTES], "big")
        row = RevealedRow(value[ID_BYTES : ID_BYTES + SHARE_BYTES], value[ID_BYTES + SHARE_BYTES :])
        _need(len(row.hidden) == TAG_BYTES * (1 + case.form.seeds), "not a row of shares")
        dealt = DealtRow(case.cohort.session, case.evidence.accused, holder, index)
        tag = dealt.tag_of(row, (column,))
        start = case.cohort.position[holder] * case.form.tags_bytes + index * TAG_BYTES
        _need(tag == tags[start : start + TAG_BYTES], "a share that does not fit its tag")
        values = shares_from_bytes(row.shares)
        _need(values is not None, "a share outside the field")
        assert values is not None
        (shares[case.cohort.position[holder] + 1],) = values
    _need(len(shares) == case.cohort.threshold, "not as many different shares as open a secret")
    secret = interpolate(lagrange_weights(tuple(shares)), list(shares.values()))
    _need(
        secret is None or not case.opens(case.position, index, column, secret), "the shares open the secret"
    )


def _words(case: _Case, said: Statement) -> dict[int, bytes]:
    """Return the masks that the signer put on its count, by the position of the neighbour."""
    own = case.cohort.position[said.signer]
    asked = [each for each in case.question(said).roster if each != own]
    words = said.fields[-1]
    _need(len(words) == COUNT_BYTES * len(asked), "words that do not fit the roster")
    return {each: words[k * COUNT_BYTES : (k + 1) * COUNT_BYTES] for k, each in enumerate(asked)}


def _false_count(case: _Case) -> None:
    """The masked count of the accused is not 1, its own masks taken off."""
    said = case.statement(0, "masked input")
    (secret,) = case.evidence.values
    question = case.question(said)
    _need(case.opens(case.position, question.sum_index, 0, secret), "not the accused's secret")
    count = int.from_bytes(said.fields[-2], "little")
    count -= own_count_word(question, position=case.position, secret=secret)
    for peer, word in _words(case, said).items():
        count += int.from_bytes(word, "little") * (-1 if peer < case.position else 1)
    _need(count % (1 << COUNT_BITS) != 1, "the count is 1")


def _false_word(case: _Case) -> None:
    """The accused put another mask on its count than the one it shares with a client that dropped out."""
    said = case.statement(0, "masked input")
    dropped, secret, *hybrid = case.evidence.values
    other = case.cohort.position[_number(dropped)]
    question = case.question(said)
    _need(case.opens(other, question.sum_index, 1, secret), "not the drop-out's mask key")
    secrets = {}
    if case.form.is_hybrid:
        accepted, secrets[case.position] = hybrid
        deposit = _deposit(case, case.statement(1, "deposit"), accepted, other, question.sum_index)
        pair = (case.evidence.accused, case.cohort.ids[other])
        tag = secret_tag(
            secrets[case.position], session=case.cohort.session, pair=pair, sum_index=question.sum_index
        )
        _need(deposit[PAIR_SECRET_BYTES:] == tag, "not the pair secret that the accused published")
    masks = masks_with(
        question,
        dropped=other,
        mask_key=mask_key_of(secret, case.form.agreement),
        survivors=[case.position],
        secrets=secrets,
    )
    (word,) = pair_count_words(masks, question)
    _need(_words(case, said)[other] != word.to_bytes(COUNT_BYTES, "little"), "the mask is right")


def _deposit(case: _Case, said: Statement, accepted: bytes, peer: int, sum_index: int) -> bytes:
    """Return the deposit of the accused for the client at position `peer` in one sum, as it signed it."""
    dealers = _records(accepted)
    _need(receipt(dealers.items()) == said.fields[1], "not what the accused accepted")
    peers = [each for each in dealers if each != case.evidence.accused]
    at = peers.index(case.cohort.ids[peer]) * case.form.deposit_bytes + sum_index * DEPOSIT_BYTES
    return said.fields[2][at : at + DEPOSIT_BYTES]


def _false_deposit(case: _Case) -> None:
    """The dealt secret of the accused does not open its deposit, by the tag that it published."""
    other, secret, accepted, number = case.evidence.values
    peer, index = _number(other), _number(number)
    _need(case.opens(case.position, index, 1, secret), "not the accused's dealt secret")
    at = case.cohort.position[peer]
    deposit = _deposit(case, case.statement(0, "deposit"), accepted, at, index)
    own, session = case.evidence.accused, case.cohort.session
    names = {"owner": own, "peer": peer, "sum_index": index}
    opened = padded(deposit[:PAIR_SECRET_BYTES], secret=secret, session=session, **names)
    tag = secret_tag(opened, session=session, pair=(own, peer), sum_index=index)
    _need(tag != deposit[PAIR_SECRET_BYTES:], "the secret opens the deposit")


def _many_disputes(case: _Case) -> None:
    """The accused contradicts more clients than may lie, all of which were asked the same."""
    said = case.statement(0, "masked input")
    own = _words(case, said)
    others = set()
    for number in range(1, len(case.evidence.statements)):
        other = case.statement(number, "masked input", by_accused=False)
        _need(other.fields[:_SUM_FIELDS] == said.fields[:_SUM_FIELDS], "a statement about another sum")
        position = case.cohort.position[other.signer]
        _need(_words(case, other)[case.position] != own[position], "no contradiction")
        others.add(other.signer)
    liars = liars_around(case.corrupt, case.cohort.threshold)
    _need(len(others) > liars, "no more contradictions than clients that may lie")


_PROOFS: Final[Mapping[Offence, Callable[[_Case], None]]] = {
    Offence.WRONG_SHARE: _wrong_share,
    Offence.FALSE_DEALING: _false_dealing,
    Offence.FALSE_COUNT: _false_count,
    Offence.FALSE_WORD: _false_word,
    Offence.FALSE_DEPOSIT: _false_deposit,
    Offence.MANY_DISPUTES: _many_disputes,
}
