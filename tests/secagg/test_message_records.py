"""Records inside messages: fixed lengths, ascending ids, each id once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import LargeCohort, MalformedMessage
from secagg.hybrid_keys import KeyAgreement
from secagg.message_records import (
    Advert,
    Format,
    Parcel,
    encode_neighbours,
    encode_signatures,
    parse_advert,
    parse_adverts,
    parse_envelopes,
    parse_neighbours,
    parse_parcels,
    parse_signatures,
)

FORMS = st.builds(
    Format, st.integers(1, 5), st.booleans(), st.integers(0, 3), st.sampled_from(list(KeyAgreement))
)
IDS = st.lists(st.integers(0, (1 << 32) - 1), min_size=2, max_size=6, unique=True).map(sorted)


def advert(member: int, form: Format) -> Advert:
    def filled(kind: int, k: int, size: int = 32) -> bytes:
        return bytes([kind * 50 + k]) * size

    keys = tuple(filled(1, k) for k in range(form.sums))
    commitments = tuple(filled(2, k) for k in range(form.sums * (1 + form.seeds)))
    kem_key = filled(4, 0, form.kem_key_bytes)
    return Advert(member, filled(0, 9), kem_key, keys, commitments, filled(3, 0, form.signature_bytes))


def parcel(sender: int, form: Format) -> Parcel:
    return Parcel(sender, b"t" * 32, b"e" * form.envelope_bytes, b"s" * form.signature_bytes)


@pytest.mark.parametrize(
    ("form", "advert_bytes", "envelope_bytes", "parcel_bytes"),
    [
        (Format(1, signed=False), 100, 82, 118),
        (Format(1, signed=True), 164, 82, 182),
        (Format(3, signed=True), 292, 214, 314),
        (Format(1, signed=False, seeds=2), 164, 148, 184),
        (Format(3, signed=True, seeds=8), 1060, 1006, 1106),
        (Format(1, signed=False, agreement=KeyAgreement.HYBRID), 1284, 1170, 1206),
        (Format(3, signed=True, seeds=8, agreement=KeyAgreement.HYBRID), 2244, 2094, 2194),
    ],
)
def test_lengths_follow_from_sums_and_signatures(
    form: Format, advert_bytes: int, envelope_bytes: int, parcel_bytes: int
) -> None:
    assert form.advert_bytes == advert_bytes == len(advert(1, form).encode())
    assert form.envelope_bytes == envelope_bytes
    assert form.parcel_bytes == parcel_bytes == len(parcel(1, form).encode())


@given(FORMS, IDS)
@settings(deadline=None, max_examples=50)
def test_records_are_read_as_they_were_written(form: Format, ids: list[int]) -> None:
    adverts = tuple(advert(member, form) for member in ids)
    assert parse_adverts(b"".join(a.encode() for a in adverts), form, most=9) == adverts
    assert parse_advert(adverts[0].encode(), form, sender=1) == adverts[0]
    parcels = tuple(parcel(member, form) for member in ids)
    assert parse_parcels(b"".join(p.encode() for p in parcels), form, most=9) == parcels
    signatures = tuple((member, bytes([member % 256]) * 64) for member in ids)
    assert parse_signatures(encode_signatures(signatures), most=9) == signatures
    envelopes = tuple(bytes([k]) * form.envelope_bytes for k in range(len(ids)))
    assert parse_envelopes(b"".join(envelopes), form, len(ids), sender=1) == envelopes


def test_tags_and_deposits_are_counted_by_the_sum() -> None:
    for sums in (1, 3):
        form = Format(sums, signed=False)
        assert (form.tags_bytes, form.deposit_bytes) == (16 * sums, 64 * sums)


def test_the_signed_body_is_everything_but_the_signature() -> None:
    form = Format(2, signed=True)
    one = advert(1, form)
    assert one.encode() == one.body + one.signature
    assert len(one.body) == form.advert_bytes - 64


def test_commitments_to_noise_are_found_by_sum_and_layer() -> None:
    """Those to self masks come first, then all layers of the first sum, of the second and so on."""
    form = Format(2, signed=False, seeds=3)
    one = advert(1, form)
    found = [one.noise_commitment(k, layer) for k in range(2) for layer in (1, 2, 3)]
    assert found == list(one.commitments[2:])
    assert len(set(found)) == 6


@given(FORMS, IDS, st.data())
@settings(deadline=None, max_examples=50)
def test_repeated_or_disordered_ids_are_refused(form: Format, ids: list[int], data: st.DataObject) -> None:
    repeat = data.draw(st.booleans())
    order = [ids[0], *ids] if repeat else [ids[1], ids[0], *ids[2:]]
    blobs = [
        b"".join(advert(k, form).encode() for k in order),
        b"".join(parcel(k, form).encode() for k in order),
        encode_signatures([(k, bytes(64)) for k in order]),
    ]
    with pytest.raises(MalformedMessage, match="repeat an id or are out of order"):
        parse_adverts(blobs[0], form, most=9)
    with pytest.raises(MalformedMessage, match="repeat an id or are out of order"):
        parse_parcels(blobs[1], form, most=9)
    with pytest.raises(MalformedMessage, match="repeat an id or are out of order"):
        parse_signatures(blobs[2], most=9)


@pytest.mark.parametrize("change", [-1, 1])
def test_records_of_another_length_are_refused(change: int) -> None:
    form = Format(1, signed=True)
    one = advert(1, form).encode()
    two = one + advert(2, form).encode()

    def resize(blob: bytes) -> bytes:
        return blob[:-1] if change < 0 else blob + b"\0"

    with pytest.raises(MalformedMessage, match="client 4: an advert of the wrong length"):
        parse_advert(resize(one), form, sender=4)
    for blob in (resize(one), resize(two)):
        with pytest.raises(MalformedMessage, match="server: records of the wrong length"):
            parse_adverts(blob, form, most=9)
    with pytest.raises(MalformedMessage, match="records of the wrong length"):
        parse_parcels(resize(parcel(1, form).encode()), form, most=9)
    with pytest.raises(MalformedMessage, match="records of the wrong length"):
        parse_signatures(resize(bytes(68)), most=9)
    with pytest.raises(MalformedMessage, match="not 2 envelopes"):
        parse_envelopes(resize(bytes(2 * form.envelope_bytes)), form, 2, sender=4)


def test_one_envelope_more_or_less_is_refused() -> None:
    form = Format(1, signed=False)
    for count in (1, 3):
        with pytest.raises(MalformedMessage, match="client 4: not 2 envelopes"):
            parse_envelopes(bytes(count * form.envelope_bytes), form, 2, sender=4)


def test_no_records_are_no_records() -> None:
    form = Format(1, signed=False)
    assert parse_adverts(b"", form, most=9) == ()
    assert parse_envelopes(b"", form, 0, sender=1) == ()
    assert encode_signatures(()) == b""


def test_a_parcel_prints_nothing_of_its_envelope() -> None:
    form = Format(1, signed=False)
    assert repr(parcel(1, form)) == f"Parcel(sender=1, tags={b't' * 32!r})"


@given(FORMS, IDS)
@settings(deadline=None, max_examples=20)
def test_a_list_longer_than_the_largest_cohort_is_refused(form: Format, ids: list[int]) -> None:
    adverts = b"".join(advert(member, form).encode() for member in ids)
    parcels = b"".join(parcel(member, form).encode() for member in ids)
    signatures = encode_signatures([(member, bytes(64)) for member in ids])
    size, why = len(ids), f"server: a list of more than {len(ids) - 1} records"
    assert len(parse_adverts(adverts, form, most=size)) == size
    assert len(parse_parcels(parcels, form, most=size)) == size
    assert len(parse_signatures(signatures, most=size)) == size
    with pytest.raises(LargeCohort, match=why):
        parse_adverts(adverts, form, most=size - 1)
    with pytest.raises(LargeCohort, match=why):
        parse_parcels(parcels, form, most=size - 1)
    with pytest.raises(LargeCohort, match=why):
        parse_signatures(signatures, most=size - 1)


# --- neighbours --------------------------------------------------------------------------------------

NEIGHBOURS = st.lists(st.integers(0, 99), min_size=2, max_size=6, unique=True).map(sorted)


def neighbours(form: Format, *pairs: tuple[int, int]) -> bytes:
    """(position, id) pairs as rows, in any order."""
    return encode_neighbours((position, advert(member, form)) for position, member in pairs)


@given(FORMS, IDS, NEIGHBOURS)
@settings(deadline=None, max_examples=50)
def test_neighbours_are_read_as_they_were_written(form: Format, ids: list[int], positions: list[int]) -> None:
    pairs = list(zip(positions, ids, strict=False))
    blob = neighbours(form, *pairs)
    assert len(blob) == len(pairs) * form.neighbour_bytes
    assert form.neighbour_bytes == 4 + form.advert_bytes
    found = parse_neighbours(blob, form, size=100, most=len(pairs))
    assert list(found.items()) == [(position, advert(member, form)) for position, member in pairs]


@pytest.mark.parametrize(
    ("pairs", "size"),
    [
        (((1, 30), (1, 40)), 9),  # one place twice
        (((2, 30), (1, 40)), 9),
        (((1, 30), (2, 30)), 9),  # one client twice
        (((1, 40), (2, 30)), 9),
        (((1, 30), (2, 40), (3, 35)), 9),
        (((1, 30), (9, 40)), 9),  # beyond the cohort
        ((((1 << 32) - 1, 30),), 9),
    ],
)
def test_neighbours_are_in_strict_order_of_position_and_id_and_within_the_cohort(
    pairs: tuple[tuple[int, int], ...], size: int
) -> None:
    form = Format(1, signed=False)
    with pytest.raises(MalformedMessage, match=r"server: .* that repeat an id,? or are out of order"):
        parse_neighbours(neighbours(form, *pairs), form, size=size, most=9)


def test_the_last_position_of_a_cohort_is_within_it() -> None:
    form = Format(1, signed=False)
    assert list(parse_neighbours(neighbours(form, (0, 3), (8, 5)), form, size=9, most=2)) == [0, 8]


@given(FORMS, IDS)
@settings(deadline=None, max_examples=20)
def test_too_many_neighbours_or_broken_rows_are_refused(form: Format, ids: list[int]) -> None:
    blob, size = neighbours(form, *enumerate(ids)), len(ids)
    with pytest.raises(LargeCohort, match=f"server: a list of more than {size - 1} records"):
        parse_neighbours(blob, form, size=99, most=size - 1)
    for broken in (blob[:-1], blob + b"\0"):
        with pytest.raises(MalformedMessage, match="server: records of the wrong length"):
            parse_neighbours(broken, form, size=99, most=size + 1)
