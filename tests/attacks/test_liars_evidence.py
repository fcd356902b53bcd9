"""Evidence of lies: an examiner accepts what the server kept, and refuses it after any change, with less of
it, or against an honest client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from secagg.errors import ParameterError
from secagg.evidence import Evidence, Offence, Statement
from secagg.hashing import DIGEST_BYTES
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_registry
from secagg.keys import KEY_BYTES, public_key
from secagg.message_records import ID_BYTES
from secagg.share_tags import tags_digest
from secagg.sum_spec import Count, Part, SumSpec, Table
from tests.attacks.court import Court
from tests.attacks.proofs import (
    CASES,
    CORRUPT,
    DEALINGS,
    LIAR,
    SIZE,
    check,
    every_case,
    evidence_of,
    framed_by,
    refused,
    tried,
)


@every_case
def test_the_examiner_accepts_what_the_server_kept(case: str) -> None:
    evidence = evidence_of(case)
    assert evidence.offence is CASES[case][0]
    assert evidence.accused == LIAR
    assert Evidence.decode(evidence.encode()) == evidence
    check(evidence, case)


def test_there_is_a_case_for_every_offence() -> None:
    assert {offence for offence, _, _ in CASES.values()} == set(Offence)


# --- changes ---------------------------------------------------------------------------------------


def flips(data: bytes, *, most: int = 64) -> Iterator[bytes]:
    """`data` with one byte changed: every one or, of long data, about `most` of them and the last."""
    places = {*range(0, len(data), max(1, len(data) // most)), len(data) - 1} if data else set()
    for at in sorted(places):
        for mask in (0x01, 0x80):
            yield data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def flipped_in(parts: tuple[bytes, ...], **limits: int) -> Iterator[tuple[bytes, ...]]:
    for k, part in enumerate(parts):
        for changed in flips(part, **limits):
            yield (*parts[:k], changed, *parts[k + 1 :])


def changed_statements(said: Statement) -> Iterator[Statement]:
    for signer in (0, *range(1, SIZE + 2)):
        if signer != said.signer:
            yield replace(said, signer=signer)
    for purpose in ("", "masked input", "reveal", "share tags", "lost", "deposit", "survivors"):
        if purpose != said.purpose:
            yield replace(said, purpose=purpose)
    for fields in flipped_in(said.fields, most=16):
        yield replace(said, fields=fields)
    for signature in flips(said.signature, most=16):
        yield replace(said, signature=signature)
    yield replace(said, signature=b"")
    yield replace(said, fields=())


@every_case
def test_evidence_against_another_client_is_refused(case: str) -> None:
    for accused in (0, *range(1, SIZE + 2), 1 << 31):
        if accused != LIAR:
            refused(replace(evidence_of(case), accused=accused), case)


@every_case
def test_evidence_of_another_offence_is_refused(case: str) -> None:
    evidence = evidence_of(case)
    for offence in Offence:
        if offence is not evidence.offence:
            refused(replace(evidence, offence=offence), case)


@every_case
def test_a_statement_with_a_changed_byte_is_refused(case: str) -> None:
    evidence = evidence_of(case)
    for k, said in enumerate(evidence.statements):
        for changed in changed_statements(said):
            statements = (*evidence.statements[:k], changed, *evidence.statements[k + 1 :])
            refused(replace(evidence, statements=statements), case)


@every_case
def test_a_value_with_a_changed_byte_is_refused(case: str) -> None:
    evidence = evidence_of(case)
    for values in flipped_in(evidence.values, most=1 << 20):
        if not same_keys(values, evidence.values):
            refused(replace(evidence, values=values), case)


def same_keys(values: tuple[bytes, ...], others: tuple[bytes, ...]) -> bool:
    """Whether the one value that differs is a private key of which X25519 ignores the changed bit."""
    ((one_key, other),) = [pair for pair in zip(values, others, strict=True) if pair[0] != pair[1]]
    return len(one_key) == KEY_BYTES and public_key(one_key) == public_key(other)


@every_case
def test_a_frame_with_a_changed_byte_is_refused(case: str) -> None:
    evidence = evidence_of(case)
    for frame in flips(evidence.invitation, most=1 << 20):
        refused(replace(evidence, invitation=frame), case)
    for frame in flips(evidence.key_list):
        refused(replace(evidence, key_list=frame), case)
    refused(replace(evidence, invitation=evidence.key_list, key_list=evidence.invitation), case)


@every_case
def test_a_file_whose_lengths_changed_is_no_evidence(case: str) -> None:
    """It does not decode, or it proves nothing. (A changed length may even swallow the next field.)"""
    data = evidence_of(case).encode()
    for at in range(4):
        for mask in (0x01, 0x80):
            changed = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
            with pytest.raises(ParameterError):
                Evidence.decode(changed)
    for stop in range(0, len(data) - 1, 97):
        with pytest.raises(ParameterError):
            Evidence.decode(data[:stop])


# --- less ------------------------------------------------------------------------------------------


@every_case
def test_a_proof_without_one_statement_is_refused(case: str) -> None:
    evidence = evidence_of(case)
    for k in range(len(evidence.statements)):
        rest = (*evidence.statements[:k], *evidence.statements[k + 1 :])
        refused(replace(evidence, statements=rest), case)


@every_case
def test_a_proof_without_one_value_is_refused(case: str) -> None:
    evidence = evidence_of(case)
    for k in range(len(evidence.values)):
        rest = (*evidence.values[:k], *evidence.values[k + 1 :])
        refused(replace(evidence, values=rest), case)


@every_case
def test_a_proof_with_a_shorter_value_is_refused(case: str) -> None:
    evidence = evidence_of(case)
    for k, value in enumerate(evidence.values):
        cut = (*evidence.values[:k], value[:-1], *evidence.values[k + 1 :])
        refused(replace(evidence, values=cut), case)


@pytest.mark.parametrize("case", DEALINGS)
def test_a_dealing_without_one_share_is_refused(case: str) -> None:
    evidence = evidence_of(case)
    for k in range(2, len(evidence.values)):
        rest = (*evidence.values[:k], *evidence.values[k + 1 :])
        refused(replace(evidence, values=rest), case)
        refused(replace(evidence, values=(*rest, rest[-1])), case)


def test_a_dispute_may_not_be_repeated() -> None:
    evidence = evidence_of("many disputes")
    *rest, last = evidence.statements
    refused(replace(evidence, statements=(*rest, rest[-1])), "many disputes")
    refused(replace(evidence, statements=(*rest, last, last)), "many disputes")


@every_case
def test_nothing_may_be_added_to_a_proof(case: str) -> None:
    evidence = evidence_of(case)
    refused(replace(evidence, values=(*evidence.values, b"more")), case)
    refused(replace(evidence, statements=(*evidence.statements, evidence.statements[-1])), case)


def test_a_receipt_has_one_form() -> None:
    evidence = evidence_of("wrong share")
    (accepted,) = evidence.values
    step = ID_BYTES + DIGEST_BYTES
    rows = [accepted[at : at + step] for at in range(0, len(accepted), step)]
    for other in ([*rows, rows[-1]], rows[::-1], [*rows, b"\0"]):
        refused(replace(evidence, values=(b"".join(other),)), "wrong share")


@every_case
def test_what_is_counted_depends_on_how_many_may_lie(case: str) -> None:
    evidence = evidence_of(case)
    if evidence.offence is Offence.MANY_DISPUTES:
        refused(evidence, case, corrupt=CORRUPT + 1)
    else:
        check(evidence, case, corrupt=SIZE)


@every_case
def test_evidence_of_another_registry_or_table_is_refused(case: str) -> None:
    other = Table({"sum": SumSpec(parts=(Part(name="x", size=6, bits=32, bound=Count(1 << 12)),))})
    refused(evidence_of(case), case, table=other)
    refused(evidence_of(case), case, registry=seeded_registry(b"other", range(1, SIZE + 1)))
    registry = tried(case).server._registry
    assert registry is not None
    without = Registry(0, {k: key for k, key in registry.members.items() if k != LIAR})
    refused(evidence_of(case), case, registry=without)


# --- honest clients --------------------------------------------------------------------------------


def test_the_count_of_an_honest_client_proves_nothing() -> None:
    tally = tried("false count").server._tally
    for (position, _), secret in tally.secrets.items():
        accused = tally.question.cohort.ids[position]
        if accused != LIAR:
            said = tally.input_statement(position)
            framed_by("false count", Offence.FALSE_COUNT, accused, (said,), secret)


def test_the_shares_of_an_honest_client_prove_nothing() -> None:
    """Nor does a tag that its dealer published later, with a signature, but that it has not accepted."""
    court = tried("wrong share")
    convictions, tally = court.server._convictions, court.server._tally
    for holder in tally.revealed:
        accused = convictions.cohort.ids[holder]
        for dealer in range(SIZE):
            said = (convictions._tags(dealer), tally.reveal_statement(holder))
            accepted = convictions._accepted(holder)
            framed_by("wrong share", Offence.WRONG_SHARE, accused, said, accepted)
        said, claimed = later_tags(court, holder)
        framed_by("wrong share", Offence.WRONG_SHARE, accused, said, claimed)
        framed_by("wrong share", Offence.WRONG_SHARE, accused, said, convictions._accepted(holder))


def later_tags(court: Court, holder: int) -> tuple[tuple[Statement, Statement], bytes]:
    """Other tags of the liar, a dealer that colludes with the server, and what the holder would have
    accepted with them."""
    convictions, size = court.server._convictions, court.server._form.tags_bytes
    liar = court.clients[LIAR]
    session, position = convictions.cohort.session, convictions.cohort.position[LIAR]
    tags = bytes(size * SIZE)
    forged = Statement(LIAR, "share tags", (session, tags), liar._sign("share tags", session, tags))
    true = tags_digest(court.server._dealt.tags_for(position, holder))
    accepted = convictions._accepted(holder).replace(true, tags_digest(bytes(size)))
    return (forged, court.server._tally.reveal_statement(holder)), accepted


def test_the_words_of_an_honest_client_prove_nothing() -> None:
    case = "false word"
    court = tried(case)
    convictions, tally = court.server._convictions, court.server._tally
    dropped = convictions.cohort.position[5]
    for position in tally.contributors:
        accused = convictions.cohort.ids[position]
        if accused != LIAR:
            _, said, values = convictions._false_word(position, dropped, tally)
            framed_by(case, Offence.FALSE_WORD, accused, tuple(said), *values)


def test_the_dealing_of_an_honest_client_proves_nothing() -> None:
    case = "false dealing"
    court = tried(case)
    convictions, tally = court.server._convictions, court.server._tally
    for dealer in tally.contributors:
        accused = convictions.cohort.ids[dealer]
        if accused != LIAR:
            head = [tally.question.sum_index.to_bytes(4, "big"), bytes(4)]
            rows = tally.dealt_rows(dealer, 0)
            said = (convictions._tags(dealer),)
            framed_by(case, Offence.FALSE_DEALING, accused, said, *head, *rows)


def test_disputes_with_liars_alone_prove_nothing() -> None:
    """The honest client that a liar contradicts is in one dispute, and so are all others."""
    case = "many disputes"
    tally = tried(case).server._tally
    for one_id, other in tally.disputes():
        accused = other if one_id == LIAR else one_id
        position = tally.question.cohort.position
        said = tuple(tally.input_statement(position[each]) for each in (accused, LIAR))
        framed_by(case, Offence.MANY_DISPUTES, accused, said)
        framed_by(case, Offence.MANY_DISPUTES, accused, (*said, *said[1:], *said[1:]))
