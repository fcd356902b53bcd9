"""The verifier's own check of evidence: it accepts what the server kept of every offence, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest

from scripts.vectors.describe import describe_table
from scripts.vectors.noise_server_refusals import TABLE as NOISY
from scripts.vectors.noise_server_refusals import NoisePlay
from scripts.vectors.server_play import REGISTRY
from secagg import messages as m
from secagg.events import Convicted, ServerEvent
from secagg.evidence import Evidence, Offence, Statement
from secagg.evidence_examiner import examine
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_registry
from secagg.shamir import SHARE_BYTES
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.trust_levels import Trust
from tests import verifier_table as tables
from tests.attacks.attackers.bad_clients import ForgingDealer, OutsideDealer, OutsideHolder, ScatteringDealer
from tests.attacks.attackers.liars import CountLiar, DepositLiar, ShareLiar, WordLiar
from tests.attacks.court import HYBRID, TABLE, Court, one
from tests.verifier_evidence import SumShape, verify_evidence
from tests.verifier_tools import Rejected

SIZE, CORRUPT, LIAR, DROPPED = 7, 2, 3, 5
AWAY: Final = {"away": [(DROPPED, "mask")]}
LIAR_AWAY: Final = {"away": [(LIAR, "mask")]}

# The name of a case -> offence, liar, and who is away in the first sum.
CASES: Final[dict[str, tuple[Offence, Any, dict[str, Any]]]] = {
    "wrong share": (Offence.WRONG_SHARE, one(ShareLiar, dealers=[7]), {}),
    "wrong share of its own": (Offence.WRONG_SHARE, one(ShareLiar, dealers=[LIAR]), {}),
    "wrong share of a drop-out": (Offence.WRONG_SHARE, one(ShareLiar, dealers=[DROPPED]), AWAY),
    "wrong share outside the field": (Offence.WRONG_SHARE, one(OutsideHolder), {}),
    "share outside the field that fits its tag": (Offence.WRONG_SHARE, one(OutsideDealer), {}),
    "false dealing": (Offence.FALSE_DEALING, one(ForgingDealer), {}),
    "false dealing of a drop-out": (Offence.FALSE_DEALING, one(ScatteringDealer), LIAR_AWAY),
    "false count": (Offence.FALSE_COUNT, one(CountLiar), {}),
    "false word": (Offence.FALSE_WORD, one(WordLiar, targets=[DROPPED]), AWAY),
    "hybrid false word": (
        Offence.FALSE_WORD,
        one(WordLiar, targets=[DROPPED]),
        {**AWAY, "key_agreement": HYBRID},
    ),
    "false deposit": (
        Offence.FALSE_DEPOSIT,
        one(DepositLiar, targets=[7], in_tag=False),
        {**LIAR_AWAY, "key_agreement": HYBRID},
    ),
    "many disputes": (Offence.MANY_DISPUTES, one(WordLiar, first=CORRUPT + 1), {}),
}
every_case = pytest.mark.parametrize("case", CASES)


@cache
def court_of(case: str) -> Court:
    """A session in which the liar of a case was convicted."""
    _, liars, settings = CASES[case]
    court = Court(Trust.MALICIOUS, SIZE, CORRUPT, liars, **settings)
    court.ask_until_convicted()
    return court


def tried(case: str) -> tuple[Evidence, Registry]:
    """The evidence against the liar of a case, and the registry of its session."""
    (convicted,) = court_of(case).convictions
    registry = court_of(case).server._registry
    assert convicted.evidence is not None
    assert registry is not None
    return convicted.evidence, registry


def verify(data: bytes, case: str, **changes: Any) -> None:
    registry = tried(case)[1]
    settings: dict[str, Any] = {
        "registry_keys": registry.members,
        "registry_digest": registry.digest,
        "specs": tables.shapes(describe_table(TABLE)),
        "table_digest": TABLE.digest,
        "corrupt": CORRUPT,
    }
    verify_evidence(data, **{**settings, **changes})


def refused(evidence: Evidence | bytes, case: str, **changes: Any) -> None:
    with pytest.raises(Rejected):
        verify(evidence if isinstance(evidence, bytes) else evidence.encode(), case, **changes)


@every_case
def test_verifier_accepts_what_the_server_kept(case: str) -> None:
    evidence, registry = tried(case)

    assert (evidence.offence, evidence.accused) == (CASES[case][0], LIAR)
    examine(evidence, registry=registry, table=TABLE, corrupt=CORRUPT)
    verify(evidence.encode(), case)


def test_there_is_a_case_for_every_offence() -> None:
    assert {offence for offence, _, _ in CASES.values()} == set(Offence)


def test_verifier_makes_the_digests_of_the_table() -> None:
    described = describe_table(TABLE)
    registry = tried("false count")[1]

    assert tables.table_digest(described) == TABLE.digest
    assert set(tables.shapes(described)) == {spec.digest for spec in TABLE.values()}
    digest = tables.registry_digest(registry.version, registry.expires, registry.members)
    assert digest == registry.digest


# --- changes -----------------------------------------------------------------------------------------


@every_case
def test_evidence_with_a_changed_byte_is_refused(case: str) -> None:
    """X25519 ignores five bits of a secret, and this is none of them in any byte."""
    data = tried(case)[0].encode()
    for at in {*range(0, len(data), max(1, len(data) // 2000)), len(data) - 1}:
        refused(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], case)


@every_case
def test_evidence_of_another_length_is_refused(case: str) -> None:
    data = tried(case)[0].encode()
    for other in (b"", data[:4], data[: len(data) // 2], data[:-1], data + b"\0", data + bytes(4), data * 2):
        refused(other, case)


def other_fields(fields: tuple[bytes, ...]) -> Iterator[tuple[bytes, ...]]:
    """One of the fields missing, empty, longer, shorter, changed or twice."""
    for k, field in enumerate(fields):
        changed = bytes([field[0] ^ 0x10]) + field[1:] if field else b"\0"
        for new in ((), (b"",), (field + b"\0",), (field[1:],), (changed,), (field, field)):
            if new != (field,):
                yield (*fields[:k], *new, *fields[k + 1 :])


@every_case
def test_evidence_with_another_value_is_refused(case: str) -> None:
    evidence = tried(case)[0]
    for values in other_fields(evidence.values):
        refused(replace(evidence, values=values), case)
    refused(replace(evidence, values=(*evidence.values, b"")), case)


@every_case
def test_evidence_with_another_statement_is_refused(case: str) -> None:
    evidence = tried(case)[0]
    for k, said in enumerate(evidence.statements):
        for changed in other_statements(said):
            statements = (*evidence.statements[:k], *changed, *evidence.statements[k + 1 :])
            refused(replace(evidence, statements=statements), case)


def other_statements(said: Statement) -> Iterator[tuple[Statement, ...]]:
    yield ()
    for fields in other_fields(said.fields):
        yield (replace(said, fields=fields),)
    for signature in (b"", said.signature[1:], said.signature + b"\0", said.signature[::-1]):
        yield (replace(said, signature=signature),)
    for purpose in ("", "masked input", "reveal", "share tags", "deposit", "survivors", "lost"):
        if purpose != said.purpose:
            yield (replace(said, purpose=purpose),)
    for signer in range(SIZE + 2):
        if signer != said.signer:
            yield (replace(said, signer=signer),)


@every_case
def test_evidence_against_another_or_for_something_else_is_refused(case: str) -> None:
    evidence = tried(case)[0]
    for accused in (0, *range(1, SIZE + 2), 1 << 31):
        if accused != LIAR:
            refused(replace(evidence, accused=accused), case)
    for offence in Offence:
        if offence is not evidence.offence:
            refused(replace(evidence, offence=offence), case)
    swapped = replace(evidence, invitation=evidence.key_list, key_list=evidence.invitation)
    refused(swapped, case)


@every_case
def test_evidence_of_another_registry_or_table_is_refused(case: str) -> None:
    evidence, registry = tried(case)
    other = Table({"sum": SumSpec(parts=(Part(name="x", size=6, bits=32, bound=Count(1 << 12)),))})
    stranger = seeded_registry(b"other", registry.members)
    without = {k: key for k, key in registry.members.items() if k != LIAR}
    refused(evidence, case, table_digest=other.digest)
    refused(evidence, case, registry_digest=stranger.digest)
    refused(evidence, case, registry_keys=stranger.members)
    refused(evidence, case, registry_keys=without)
    if evidence.offence not in (Offence.FALSE_DEALING, Offence.FALSE_DEPOSIT):  # these are about no spec
        refused(evidence, case, specs=tables.shapes(describe_table(other)))


@every_case
def test_only_disputes_depend_on_how_many_may_lie(case: str) -> None:
    evidence = tried(case)[0]
    if evidence.offence is Offence.MANY_DISPUTES:
        refused(evidence, case, corrupt=CORRUPT + 1)
    else:
        verify(evidence.encode(), case, corrupt=SIZE)


def test_a_repeated_statement_counts_once() -> None:
    evidence = tried("many disputes")[0]
    *rest, _last = evidence.statements
    refused(replace(evidence, statements=(*rest, rest[-1])), "many disputes")


# --- honest clients ----------------------------------------------------------------------------------


def framed(case: str, accused: int, said: list[Statement], values: list[bytes]) -> None:
    """Evidence of the same session and offence against an honest client is refused."""
    evidence = replace(tried(case)[0], accused=accused, statements=tuple(said), values=tuple(values))
    refused(evidence, case)


def honest_positions(case: str) -> list[int]:
    cohort = court_of(case).server._cohort
    return [position for position, member in enumerate(cohort.ids) if member not in (LIAR, DROPPED)]


def count_of(court: Court, position: int) -> tuple[list[Statement], list[bytes]]:
    tally = court.server._tally
    return [tally.input_statement(position)], [tally.secrets[position, 0]]


def share_of(court: Court, position: int) -> tuple[list[Statement], list[bytes]]:
    convictions, tally = court.server._convictions, court.server._tally
    said = [convictions._tags(6), tally.reveal_statement(position)]
    return said, [convictions._accepted(position)]


def word_of(court: Court, position: int) -> tuple[list[Statement], list[bytes]]:
    convictions = court.server._convictions
    dropped = convictions.cohort.position[DROPPED]
    _, said, values = convictions._false_word(position, dropped, court.server._tally)
    return said, values


def dealing_of(court: Court, position: int) -> tuple[list[Statement], list[bytes]]:
    convictions, tally = court.server._convictions, court.server._tally
    head = [tally.question.sum_index.to_bytes(4, "big"), bytes(4)]
    return [convictions._tags(position)], [*head, *tally.dealt_rows(position, 0)]


FRAMES: Final[dict[str, Callable[[Court, int], tuple[list[Statement], list[bytes]]]]] = {
    "false count": count_of,
    "wrong share": share_of,
    "false word": word_of,
    "hybrid false word": word_of,
    "false dealing": dealing_of,
}


@pytest.mark.parametrize("case", FRAMES)
def test_the_same_about_an_honest_client_proves_nothing(case: str) -> None:
    court = court_of(case)
    for position in honest_positions(case):
        said, values = FRAMES[case](court, position)
        framed(case, court.server._cohort.ids[position], said, values)


# --- with noise --------------------------------------------------------------------------------------


def wrong_share_of_noise() -> Evidence:
    """Client 3 swaps two shares of noise of one dealer."""
    play = NoisePlay()
    play.unmasking()
    shares = play.reply(m.Reveal).shares
    cut = [shares[at : at + SHARE_BYTES] for at in range(0, len(shares), SHARE_BYTES)]
    swapped = play.reveal(shares=b"".join([cut[0], cut[2], cut[1], *cut[3:]]))
    return conviction(play.server.receive(3, swapped.encode()))


def false_dealing_of_noise() -> Evidence:
    play = NoisePlay(corrupt_dealer=2)
    play.unmasking().receive()
    return conviction(play.server.close_stage().events)


def conviction(events: Iterable[ServerEvent]) -> Evidence:
    (evidence,) = [event.evidence for event in events if isinstance(event, Convicted)]
    assert evidence is not None
    return evidence


@pytest.mark.parametrize("make", [wrong_share_of_noise, false_dealing_of_noise])
def test_rows_have_shares_of_noise(make: Callable[[], Evidence]) -> None:
    evidence = make()
    settings: dict[str, Any] = {
        "registry_keys": REGISTRY.members,
        "registry_digest": REGISTRY.digest,
        "table_digest": NOISY.digest,
        "corrupt": 1,
    }
    shapes = tables.shapes(describe_table(NOISY))
    examine(evidence, registry=REGISTRY, table=NOISY, corrupt=1)
    verify_evidence(evidence.encode(), **settings, specs=shapes)

    assert {shape.seeds for shape in shapes.values()} == {NOISY.seeds}
    bare = {digest: SumShape(shape.count_offset, 0) for digest, shape in shapes.items()}
    with pytest.raises(Rejected):
        verify_evidence(evidence.encode(), **settings, specs=bare)
    data = evidence.encode()
    for at in range(0, len(data), 7):
        changed = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises(Rejected):
            verify_evidence(changed, **settings, specs=shapes)
