"""Each condition of a proof: evidence that lacks just this one proves nothing.

Some of it honest clients would never sign. It is signed here as by a client that signs anything, so that
what refuses it is the condition alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from secagg import messages as m
from secagg.cohort_members import session_id
from secagg.errors import Unproven
from secagg.evidence import Evidence, Offence, Statement
from secagg.evidence_examiner import examine
from secagg.shamir import PRIME, SHARE_BYTES
from secagg.share_tags import TAG_BYTES, DealtRow
from secagg.sum_spec import COUNT_BYTES
from secagg.sum_unmasking import Tally
from secagg.trust_levels import Trust
from tests.attacks.court import TABLE, Court
from tests.attacks.proofs import CORRUPT, LIAR, SIZE, check, every_case, evidence_of, refused, resigned, tried

PURPOSES = ("masked input", "reveal", "share tags", "deposit", "survivors", "key list")


def with_statement(evidence: Evidence, number: int, said: Statement) -> Evidence:
    statements = (*evidence.statements[:number], said, *evidence.statements[number + 1 :])
    return replace(evidence, statements=statements)


# --- signatures --------------------------------------------------------------------------------------


@every_case
def test_a_signature_counts_for_its_purpose_only(case: str) -> None:
    evidence = evidence_of(case)
    for number, said in enumerate(evidence.statements):
        assert resigned(case, said) == said
        for purpose in PURPOSES:
            if purpose != said.purpose:
                refused(with_statement(evidence, number, resigned(case, said, purpose=purpose)), case)


@every_case
def test_keys_that_the_accused_has_not_signed_are_not_its_keys(case: str) -> None:
    """Another key list is another session, in which nothing fits: a server could make up any lie."""
    evidence = evidence_of(case)
    adverts = tried(case).server._cohort.adverts
    own = next(each for each in adverts if each.member == LIAR)
    forged = replace(own, signature=own.signature[::-1])
    key_list = evidence.key_list.replace(own.encode(), forged.encode())
    assert key_list != evidence.key_list
    session = session_id(evidence.invitation, key_list)
    statements = tuple(
        resigned(case, said, fields=(session, *said.fields[1:])) for said in evidence.statements
    )
    refused(replace(evidence, key_list=key_list, statements=statements), case)


# --- inputs and reveals of another form --------------------------------------------------------------

INPUTS = ("false count", "false word", "hybrid false word", "many disputes")


@pytest.mark.parametrize("case", INPUTS)
def test_an_input_with_more_or_fewer_words_is_no_lie(case: str) -> None:
    """A server refuses it as malformed. Its count need not be 1."""
    evidence = evidence_of(case)
    for number, said in enumerate(evidence.statements):
        if said.purpose == "masked input":
            *rest, words = said.fields
            for other in (words[:-COUNT_BYTES], words[:-1], words + bytes(COUNT_BYTES), b""):
                changed = resigned(case, said, fields=(*rest, other))
                refused(with_statement(evidence, number, changed), case)


def reveals(case: str) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Surplus, shares and hashes of reveals that do not fit the rows of the session."""
    *_, surplus, _, _, shares, hidden = evidence_of(case).statements[1].fields
    rows = [shares[at : at + SHARE_BYTES] for at in range(0, len(shares), SHARE_BYTES)]
    yield b"\x01", b"".join(row + row for row in rows), b""  # of noise seeds, which are not dealt here
    yield b"\x00", b"".join(row + row for row in rows), b""
    yield surplus, shares[:-SHARE_BYTES], hidden
    yield surplus, shares[:-1], hidden
    yield surplus, shares, hidden[:-TAG_BYTES]
    yield surplus, shares, hidden + bytes(TAG_BYTES)


def test_a_reveal_of_another_form_is_no_wrong_share() -> None:
    """A server refuses it as malformed, and the holder may have meant anything."""
    case = "wrong share"
    evidence = evidence_of(case)
    said = evidence.statements[1]
    *head, _, receipt, dealers, _, _ = said.fields
    for surplus, shares, hidden in reveals(case):
        fields = (*head, surplus, receipt, dealers, shares, hidden)
        refused(with_statement(evidence, 1, resigned(case, said, fields=fields)), case)


# --- dealings ----------------------------------------------------------------------------------------


def dealing(column_0: list[bytes], *, columns: int = 2) -> Evidence:
    """Evidence of a dealing in which the liar has dealt these shares in column 0 for the first sum, each in a
    row of so many columns, and has signed tags of them."""
    case = "false dealing"
    evidence, server = evidence_of(case), tried(case).server
    session, ids, size = server._cohort.session, server._cohort.ids, server._form.tags_bytes
    tags, values = bytearray(size * SIZE), []
    for position, share in enumerate(column_0):
        row = DealtRow(session, LIAR, ids[position], 0)
        shares = share + bytes(SHARE_BYTES * (columns - 1))
        hashes = row.hashes(shares)
        tags[position * size : position * size + TAG_BYTES] = row.tag(shares)
        values.append(ids[position].to_bytes(4, "big") + share + b"".join(hashes[1:]))
    said = resigned(case, evidence.statements[0], fields=(session, bytes(tags)))
    chosen = values[: server._cohort.threshold]
    return replace(evidence, statements=(said,), values=(*evidence.values[:2], *chosen))


def numbers(*values: int) -> list[bytes]:
    return [value.to_bytes(SHARE_BYTES, "big") for value in values]


def test_shares_that_open_nothing_prove_a_false_dealing() -> None:
    check(dealing(numbers(*range(1, SIZE + 1))), "false dealing")


def test_a_share_outside_the_field_is_no_share() -> None:
    refused(dealing(numbers(PRIME, *range(1, SIZE))), "false dealing")


@pytest.mark.parametrize("columns", [1, 3])
def test_a_row_of_another_width_is_no_row(columns: int) -> None:
    refused(dealing(numbers(*range(1, SIZE + 1)), columns=columns), "false dealing")


# --- disputes ----------------------------------------------------------------------------------------


@cache
def honest() -> tuple[Court, list[Tally]]:
    """An honest session of two sums."""
    court, tallies = Court(Trust.MALICIOUS, SIZE, CORRUPT, {}), []
    for _ in range(2):
        court.ask()
        tallies.append(court.server._tally)
    return court, tallies


def disputes(one: int, other: int) -> None:
    """The input of client 3 to sum `one`, and those of all others to sum `other`, prove nothing."""
    court, tallies = honest()
    frames, registry = court.server._convictions.frames, court.server._registry
    assert frames is not None
    assert registry is not None
    own, *rest = [LIAR - 1, *(k for k in range(SIZE) if k != LIAR - 1)]
    said = (tallies[one].input_statement(own), *(tallies[other].input_statement(k) for k in rest))
    evidence = Evidence(Offence.MANY_DISPUTES, LIAR, *frames, said)
    with pytest.raises(Unproven):
        examine(evidence, registry=registry, table=TABLE, corrupt=CORRUPT)


def test_clients_that_agree_are_not_in_dispute() -> None:
    disputes(0, 0)
    disputes(1, 1)


def test_words_of_two_sums_are_no_contradiction() -> None:
    """The masks of every sum are others, so an honest client contradicts all others."""
    disputes(0, 1)
    disputes(1, 0)


def test_the_message_types_of_a_set_up_are_checked() -> None:
    evidence = evidence_of("false count")
    for frame in (evidence.key_list, m.Farewell(bytes(32)).encode()):
        refused(replace(evidence, invitation=frame), "false count")
    for frame in (evidence.invitation, m.Farewell(bytes(32)).encode()):
        refused(replace(evidence, key_list=frame), "false count")
