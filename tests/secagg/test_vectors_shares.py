"""The steps that version 2 added, in primitives.json: the package and the verifier both make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from scripts.vectors.describe import read_part
from secagg.hashing import digest
from secagg.hybrid_keys import (
    Encapsulation,
    KemKey,
    KeyAgreement,
    mask_key_of,
    padded,
    pair_secrets,
    secret_tag,
)
from secagg.input_encoding import Encoding
from secagg.keys import Agreement, envelope_info, public_key
from secagg.mask_keystream import KeyStream
from secagg.message_records import Advert
from secagg.share_envelopes import EnvelopeCipher
from secagg.share_tags import DealtRow, RevealedRow, receipt, tags_digest, tags_of
from secagg.sum_spec import SumSpec
from tests import verifier_hybrid as hybrid
from tests import verifier_table as tables
from tests import verifier_tools as tools

PATH = Path(__file__).resolve().parent.parent / "vectors" / "primitives.json"
VECTORS: dict[str, Any] = json.loads(PATH.read_text(encoding="ascii"))
Case = dict[str, Any]


def each(name: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Run a test with every case of a group."""
    return pytest.mark.parametrize("case", VECTORS[name])


def unhex(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


# --- tags --------------------------------------------------------------------------------------------


@each("share_tags")
def test_share_tags(case: Case) -> None:
    session, rows = bytes.fromhex(case["session"]), [unhex(row) for row in case["rows"]]
    names = {"session": session, "dealer": case["dealer"], "holder": case["holder"]}
    dealt = [DealtRow(session, case["dealer"], case["holder"], k) for k in range(len(rows))]
    tags = tags_of(b"".join(map(b"".join, rows)), **names, sums=len(rows))

    hashes = [
        [each.hex() for each in name.hashes(b"".join(row))] for name, row in zip(dealt, rows, strict=True)
    ]
    assert hashes == case["hashes"]
    assert tags.hex() == "".join(case["tags"])
    assert tags_digest(tags).hex() == case["tags_digest"]


@each("share_tags")
def test_what_is_revealed_of_a_row_gives_its_tag(case: Case) -> None:
    """Of a drop-out, one share; of a survivor, its self mask and all noise. Hashes stand for the others."""
    session = bytes.fromhex(case["session"])
    for index, (row, hashes) in enumerate(zip(case["rows"], case["hashes"], strict=True)):
        name = DealtRow(session, case["dealer"], case["holder"], index)
        for columns in case["columns"]:
            hidden = [each for column, each in enumerate(hashes) if column not in columns]
            shown = RevealedRow(b"".join(unhex([row[column] for column in columns])), b"".join(unhex(hidden)))
            assert name.tag_of(shown, columns).hex() == case["tags"][index]


@each("share_tags")
def test_verifier_makes_the_same_tags(case: Case) -> None:
    session = bytes.fromhex(case["session"])
    for index, row in enumerate(case["rows"]):
        names = (session, case["dealer"], case["holder"], index)
        hashes = [tools.share_hash(*names, column, share) for column, share in enumerate(unhex(row))]
        assert [each.hex() for each in hashes] == case["hashes"][index]
        assert tools.row_tag(hashes).hex() == case["tags"][index]
    assert tools.digest("share tags", b"".join(unhex(case["tags"]))).hex() == case["tags_digest"]


@each("receipts")
def test_receipt(case: Case) -> None:
    accepted = [(row["dealer"], bytes.fromhex(row["tags_digest"])) for row in case["accepted"]]

    assert receipt(accepted).hex() == case["receipt"]
    records = [tools.u32(dealer) + tags for dealer, tags in accepted]
    assert tools.digest("receipt", *records).hex() == case["receipt"]


# --- words -------------------------------------------------------------------------------------------


@each("words")
def test_word(case: Case) -> None:
    seed, parts = bytes.fromhex(case["seed"]), tuple(map(read_part, case["parts"]))
    offset = Encoding(SumSpec(parts=parts), cohort=4).count_offset

    assert offset == case["offset"]
    assert KeyStream(seed, skip=offset).words(1).tobytes().hex() == case["word"]


@each("words")
def test_verifier_makes_the_same_word(case: Case) -> None:
    seed, layout = bytes.fromhex(case["seed"]), tables.layout(case)
    *_parts, (count,) = tools.keystream(seed, layout)

    assert tables.count_offset(case) == case["offset"]
    assert tools.word_at(seed, case["offset"]).hex() == case["word"]
    assert count.to_bytes(8, "little").hex() == case["word"]


def test_digest_of_masked_parts() -> None:
    case = VECTORS["masked_parts"]

    assert digest("masked parts", bytes.fromhex(case["parts"])).hex() == case["digest"]


# --- hybrid keys -------------------------------------------------------------------------------------


def test_pair_secrets_and_deposits() -> None:
    case = VECTORS["pair_secrets"]
    session, ids, index = bytes.fromhex(case["session"]), case["ids"], case["sum_index"]
    lower, higher = (
        Encapsulation(*unhex([row["secret"], row["ciphertext"]])) for row in case["encapsulations"]
    )
    found = pair_secrets(lower, higher, session=session, pair=(ids[0], ids[1]), sums=2)
    tags = [secret_tag(s, session=session, pair=(ids[0], ids[1]), sum_index=k) for k, s in enumerate(found)]
    dealt, secret = unhex(case["dealt"]), found[index]
    keys = [mask_key_of(each, KeyAgreement.HYBRID) for each in dealt]

    assert [each.hex() for each in found] == case["pair_secrets"]
    assert [tag.hex() for tag in tags] == case["tags"]
    assert [key.hex() for key in keys] == case["mask_keys"]
    for own, owner, peer, text in zip(dealt, ids, reversed(ids), case["padded"], strict=True):
        names = {"session": session, "owner": owner, "peer": peer, "sum_index": index}
        assert padded(secret, secret=own, **names).hex() == text
        assert padded(bytes.fromhex(text), secret=own, **names) == secret
    info = bytes.fromhex(case["pair_info"])
    for one, other in (keys, keys[::-1]):
        seed = Agreement(one).derive(public_key(other), salt=session, info=info, more=secret)
        assert seed.hex() == case["pair_seed"]


def test_verifier_makes_the_same_pair_secrets_and_deposits() -> None:
    case = VECTORS["pair_secrets"]
    session, ids, index = bytes.fromhex(case["session"]), case["ids"], case["sum_index"]
    ends = dict(zip(ids, case["encapsulations"], strict=True))
    found = [hybrid.pair_secret(session, ends, k) for k in range(2)]
    tags = [hybrid.pair_secret_tag(session, ids[1], ids[0], k, secret) for k, secret in enumerate(found)]
    keys = [hybrid.mask_key(dealt, True).hex() for dealt in unhex(case["dealt"])]

    assert [secret.hex() for secret in found] == case["pair_secrets"]
    assert [tag.hex() for tag in tags] == case["tags"]
    assert keys == case["mask_keys"]
    for own, owner, peer, text in zip(unhex(case["dealt"]), ids, reversed(ids), case["padded"], strict=True):
        assert hybrid.opened_deposit(found[index], own, session, owner, peer, index).hex() == text
    seed = tools.agree(keys[0], keys[1], session, bytes.fromhex(case["pair_info"]), found[index])
    assert seed.hex() == case["pair_seed"]


def test_hybrid_envelope() -> None:
    case = VECTORS["hybrid_envelope"]
    session, text, sealed, key = unhex([case[k] for k in ("session", "plaintext", "envelope", "key")])
    made = Encapsulation(*unhex([case["encapsulation"][name] for name in ("secret", "ciphertext")]))
    (sender, receiver), ids, kem = (
        unhex(case["secrets"]),
        case["ids"],
        KemKey(bytes.fromhex(case["kem_seed"])),
    )
    cipher = EnvelopeCipher(sender, session=session, owner=ids[0], kem=kem, encapsulate=lambda _: made)
    to = Advert(ids[1], public_key(receiver), kem.public(), (), ())

    assert kem.public().hex() == case["kem_key"] == hybrid.kem_public(case["kem_seed"]).hex()
    assert cipher.seal(text, receiver=to) == sealed == made.ciphertext + sealed[len(made.ciphertext) :]
    info = envelope_info(*ids)
    assert AESGCM(key).decrypt(bytes(12), sealed[len(made.ciphertext) :], session + info) == text
    agreed = tools.agree(*case["secrets"], session, info + made.ciphertext, made.secret)
    assert agreed == key
