"""The steps in primitives.json, replayed one by one; and the published vectors they rest on."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from scripts.vectors.describe import read_part, read_registry, read_table
from secagg import messages as m
from secagg import residue_packing, shamir
from secagg.bitmap import pack_positions, unpack_positions
from secagg.canonical_msgpack import Reader, encode_fields
from secagg.cohort_members import invitation_digest, ring_digest, ring_session_id, session_id
from secagg.hashing import digest, framed
from secagg.hybrid_keys import encapsulate
from secagg.input_encoding import Encoding
from secagg.keys import (
    Agreement,
    Identity,
    envelope_info,
    hkdf,
    mask_context,
    pair_info,
    public_key,
    seed_commitment,
    self_mask_seed,
    verify,
)
from secagg.mask_keystream import KeyStream, apply_masks
from secagg.message_records import Advert, Format, encode_ids, parse_advert
from secagg.preflight import preflight
from secagg.query_context import content_digest, query_digest
from secagg.session_params import SessionParams
from secagg.share_envelopes import EnvelopeCipher
from secagg.sum_spec import Count, Part, SumSpec, Table
from secagg.trust_levels import Trust

PATH = Path(__file__).resolve().parent.parent / "vectors" / "primitives.json"
VECTORS: dict[str, Any] = json.loads(PATH.read_text(encoding="ascii"))
PUBLISHED = VECTORS["published"]
Case = dict[str, Any]


def each(name: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Run a test with every case of a group."""
    return pytest.mark.parametrize("case", VECTORS[name])


def unhex(*texts: str) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


# --- published ---------------------------------------------------------------------------------------


def test_x25519() -> None:
    case = PUBLISHED["x25519"]
    secret_a, secret_b, shared = unhex(case["secret_a"], case["secret_b"], case["shared"])

    assert public_key(secret_a).hex() == case["public_a"]
    assert public_key(secret_b).hex() == case["public_b"]
    derived = Agreement(secret_a).derive(public_key(secret_b), salt=b"salt", info=b"info")
    assert derived == hkdf(shared, salt=b"salt", info=b"info")


def test_hkdf() -> None:
    case = PUBLISHED["hkdf_sha256"]
    material, salt, info = unhex(case["material"], case["salt"], case["info"])

    assert hkdf(material, salt=salt, info=info).hex() == case["output"]


def test_ed25519() -> None:
    case = PUBLISHED["ed25519"]
    identity = Identity.from_secret(bytes.fromhex(case["secret"]))

    assert identity.public.hex() == case["public"]
    assert identity._key.sign(bytes.fromhex(case["message"])).hex() == case["signature"]


def test_aes_ctr() -> None:
    case = PUBLISHED["aes128_ctr"]
    key, counter, plain, cipher = unhex(case["key"], case["counter"], case["plaintext"], case["ciphertext"])
    stream = KeyStream(key + counter).words(len(plain) // 8).tobytes()

    assert bytes(a ^ b for a, b in zip(plain, stream, strict=True)) == cipher


def test_aes_gcm() -> None:
    case = PUBLISHED["aes256_gcm"]
    key, plain = unhex(case["key"], case["plaintext"])

    assert AESGCM(key).encrypt(bytes(12), plain, b"").hex() == case["ciphertext"] + case["tag"]


@pytest.mark.parametrize("figure", PUBLISHED["expansion"]["figures"])
def test_expansion(figure: Case) -> None:
    """The paper's formula gives its figures, and what our client sends is less than all of its traffic."""
    clients, size, bits = figure["clients"], figure["elements"], PUBLISHED["expansion"]["input_bits"]
    ring_bits = ceil(log2(clients * (2**bits - 1) + 1))
    formula = (256 * (7 * clients - 4) + size * ring_bits) / (size * bits)
    part = Part(name="x", size=size, bits=ring_bits, bound=Count(2**bits - 1))
    table = Table({"sum": SumSpec(parts=(part,))})
    report = preflight(table, clients, SessionParams(trust=Trust.CURIOUS, corrupt=0, dropout=0, sums=1))
    sent = (report.setup_bytes_up + report.sum_bytes_up["sum"]) / (size * bits / 8)

    assert abs(formula - figure["factor"]) < 0.006
    assert ring_bits / bits < sent < formula


# --- hashes and keys ---------------------------------------------------------------------------------


@each("tagged_digests")
def test_tagged_digest(case: Case) -> None:
    fields = unhex(*case["fields"])

    assert framed(case["purpose"], *fields).hex() == case["framed"]
    assert digest(case["purpose"], *fields).hex() == case["digest"]


def test_named_digests() -> None:
    cases = VECTORS["named_digests"]
    table, registry = read_table(cases["table"]["table"]), read_registry(cases["registry"])
    invitation, key_list = unhex(cases["session"]["invitation"], cases["session"]["key_list"])
    content = cases["query_content"]

    assert (
        invitation_digest(bytes.fromhex(cases["invitation"]["frame"])).hex() == cases["invitation"]["digest"]
    )
    assert session_id(invitation, key_list).hex() == cases["session"]["digest"]
    assert query_digest(bytes.fromhex(cases["query"]["frame"])).hex() == cases["query"]["digest"]
    assert content_digest(content["kind"], bytes.fromhex(content["payload"])).hex() == content["digest"]
    assert {kind: spec.digest.hex() for kind, spec in table.items()} == cases["specs"]
    assert table.digest.hex() == cases["table"]["digest"]
    assert registry is not None
    assert registry.digest.hex() == cases["registry"]["digest"]


def test_digests_of_a_ring() -> None:
    ring, sessions = VECTORS["named_digests"]["ring"], VECTORS["named_digests"]["ring_sessions"]
    form = Format(sums=1, signed=False)
    adverts = [parse_advert(record, form, sender="server") for record in unhex(*ring["adverts"])]

    assert [advert.member for advert in adverts] == [3, 7, 300]
    assert ring_digest(adverts).hex() == ring["digest"]
    assert [session["members"] for session in sessions] == ["", encode_ids([3, 7, 300]).hex()]
    for session in sessions:
        numbers = {name: session[name] for name in ("size", "neighbours", "threshold")}
        invitation, digest_of_ring, ids = unhex(session["invitation"], session["ring"], session["members"])
        found = ring_session_id(invitation, **numbers, ring=digest_of_ring, members=ids)
        assert found.hex() == session["digest"]


def test_key_schedule() -> None:
    case = VECTORS["key_schedule"]
    names = ("session", "query", "spec", "cohort", "roster")
    bound = {name: bytes.fromhex(case[name]) for name in names}
    context = mask_context(**bound, sum_index=case["sum_index"])
    info = pair_info(context, *case["ids"])
    (low, high), seed = unhex(*case["secrets"]), bytes.fromhex(case["self_mask"])

    assert context.hex() == case["mask_context"]
    assert [public_key(low).hex(), public_key(high).hex()] == case["publics"]
    assert info.hex() == case["pair_info"]
    assert pair_info(context, *reversed(case["ids"])) == info
    for mine, other in ((low, high), (high, low)):
        derived = Agreement(mine).derive(public_key(other), salt=bound["session"], info=info)
        assert derived.hex() == case["pair_seed"]
    own = self_mask_seed(seed, session=bound["session"], context=context, owner=case["owner"])
    assert own.hex() == case["self_mask_seed"]
    commitment = seed_commitment(seed, owner=case["owner"], sum_index=case["sum_index"])
    assert commitment.hex() == case["self_mask_commitment"]


@each("signatures")
def test_signature(case: Case) -> None:
    identity, fields = Identity.from_secret(bytes.fromhex(case["secret"])), unhex(*case["fields"])
    purpose, signature = case["purpose"], bytes.fromhex(case["signature"])

    assert identity.public.hex() == case["public"]
    assert framed(f"signature: {purpose}", *fields).hex() == case["signed"]
    assert identity.sign(purpose, *fields) == signature
    verify(identity.public, signature, purpose, *fields, peer=1)


# --- masks, shares, envelopes ------------------------------------------------------------------------


@each("keystreams")
def test_keystream(case: Case) -> None:
    assert KeyStream(bytes.fromhex(case["seed"])).words(8).tolist() == case["words"]


@each("masks")
def test_mask(case: Case) -> None:
    residues = (
        np.zeros(5, residue_packing.dtype_for(case["bits"])),
        np.zeros(1, residue_packing.dtype_for(64)),
    )
    apply_masks(residues, plus=[bytes.fromhex(case["seed"])])
    residue_packing.reduce(residues[0], case["bits"])

    assert residues[0].tolist() == case["mask"]
    assert residues[1].tolist() == case["count"]


@each("shamir")
def test_shamir(case: Case) -> None:
    secret, drawn = unhex(case["secret"], case["random"])
    threshold, holders = case["threshold"], len(case["shares"])
    shares = shamir.deal(secret, threshold=threshold, holders=holders, random=lambda count: drawn[:count])
    last = range(holders - threshold + 1, holders + 1)
    values = shamir.shares_from_bytes(b"".join(bytes.fromhex(case["shares"][x - 1]) for x in last))

    assert [shamir.shares_to_bytes([share]).hex() for share in shares] == case["shares"]
    assert values is not None
    assert shamir.interpolate(shamir.lagrange_weights(last), values) == secret


@each("envelopes")
def test_envelope(case: Case) -> None:
    session, text, sealed, key = unhex(case["session"], case["plaintext"], case["envelope"], case["key"])
    (sender, receiver), ids = unhex(*case["secrets"]), case["ids"]
    info = envelope_info(*ids)
    theirs = EnvelopeCipher(receiver, session=session, owner=ids[1], kem=None, encapsulate=encapsulate)
    ours = EnvelopeCipher(sender, session=session, owner=ids[0], kem=None, encapsulate=encapsulate)

    assert Agreement(sender).derive(public_key(receiver), salt=session, info=info) == key
    assert AESGCM(key).decrypt(bytes(12), sealed, session + info) == text
    assert ours.seal(text, receiver=advert_with(ids[1], public_key(receiver))) == sealed
    assert theirs.open(sealed, sender=advert_with(ids[0], public_key(sender))) == text


def advert_with(member: int, channel_key: bytes) -> Advert:
    return Advert(member, channel_key, b"", (), ())


# --- the wire ----------------------------------------------------------------------------------------


@each("packing")
def test_packing(case: Case) -> None:
    bits, packed = case["bits"], bytes.fromhex(case["packed"])
    values = np.array(case["values"], np.uint64).astype(residue_packing.dtype_for(bits))

    assert len(packed) == residue_packing.packed_bytes(len(values), bits)
    assert residue_packing.pack(values, bits) == packed
    assert residue_packing.unpack(packed, len(values), bits).tolist() == case["values"]


@each("bitmaps")
def test_bitmap(case: Case) -> None:
    bitmap = bytes.fromhex(case["bitmap"])

    assert pack_positions(case["positions"], case["size"]) == bitmap
    assert list(unpack_positions(bitmap, case["size"], sender="server")) == case["positions"]


@each("codec")
def test_codec(case: Case) -> None:
    fields = [bytes.fromhex(f["bytes"]) if isinstance(f, dict) else f for f in case["fields"]]
    frame = bytes.fromhex(case["frame"])
    reader = Reader(frame, sender="server")
    readers: dict[type, Callable[[], Any]] = {int: reader.uint, bytes: reader.blob, str: reader.text}

    assert encode_fields(*fields) == frame
    reader.array(len(fields))
    assert [readers[type(field)]() for field in fields] == fields
    reader.end()


@each("messages")
def test_message(case: Case) -> None:
    frame = bytes.fromhex(case["frame"])
    message = m.decode(frame, sender="server", limit=len(frame))
    fields = {k: bytes.fromhex(v["bytes"]) if isinstance(v, dict) else v for k, v in case["fields"].items()}

    assert type(message).__name__ == case["type"]
    assert vars(message) == fields
    assert message.encode() == frame


def test_there_is_a_message_of_every_type() -> None:
    types = [case["type"] for case in VECTORS["messages"]]

    assert types == [kind.__name__ for kind in (*m.FROM_SERVER, *m.FROM_CLIENT)]


# --- numbers -----------------------------------------------------------------------------------------


@each("fixed_point")
def test_fixed_point(case: Case) -> None:
    part = read_part(case["part"])
    encoding = Encoding(SumSpec(parts=(part,)), cohort=case["cohort"])
    encoded = encoding.encode({part.name: case["values"]}, KeyStream(bytes.fromhex(case["rounding"])))

    assert encoding.levels(part) == case["levels"]
    assert encoding.scale(part) == case["scale"]
    assert encoded.residues[0].tolist() == case["residues"]


@each("totals")
def test_total(case: Case) -> None:
    part = read_part(case["part"])
    encoding = Encoding(SumSpec(parts=(part,)), cohort=case["cohort"])
    sums = [sum(column) % (1 << part.bits) for column in zip(*case["inputs"], strict=True)]
    residues = np.array(case["residues"], np.uint64).astype(residue_packing.dtype_for(part.bits))
    count = np.array([len(case["inputs"])], np.uint64)
    total = encoding.decode((residues, count), contributors=len(case["inputs"]), invited=case["cohort"])

    assert sums == case["residues"]
    assert total[part.name].tolist() == case["values"]
