"""Vectors of what version 2 added: tags of shares, receipts, words of masks, hybrid keys, deposits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from scripts.vectors.describe import describe_part
from secagg.hashing import digest, framed
from secagg.hybrid_keys import (
    CIPHERTEXT_BYTES,
    Encapsulation,
    KemKey,
    KeyAgreement,
    mask_key_of,
    padded,
    pair_secrets,
    secret_tag,
)
from secagg.input_encoding import Encoding
from secagg.insecure_seeds import SeededRandom
from secagg.keys import Agreement, envelope_info, hkdf, public_key
from secagg.mask_keystream import KeyStream
from secagg.shamir import PRIME, SHARE_BYTES
from secagg.share_tags import DealtRow, receipt, revealed_columns, tags_digest, tags_of
from secagg.sum_spec import Count, Part, Residue, SumSpec

_SESSION: Final = digest("vector", b"session")
_IDS: Final = (7, 300)


def secret(name: str, size: int = 32) -> bytes:
    return SeededRandom(b"primitives", name.encode())(size)


def share_primitives() -> dict[str, Any]:
    """What the file of primitives has of these steps."""
    return {
        "share_tags": [_share_tags(seeds) for seeds in (0, 2)],
        "receipts": [_receipt(*dealers) for dealers in ((7,), (3, 7, 300))],
        "words": [_word(*parts) for parts in _PARTS],
        "masked_parts": _masked_parts(),
        "pair_secrets": _pair_secrets(),
        "hybrid_envelope": _hybrid_envelope(),
    }


# --- shares ---------------------------------------------------------------------------------------


def _share_tags(seeds: int) -> dict[str, Any]:
    """All that a dealer deals to a holder for two sums, with the tags, and what the holder may reveal."""
    rows = [_row(f"row {k} of {seeds}", 2 + seeds) for k in range(2)]
    dealt = [DealtRow(_SESSION, 300, 7, k) for k in range(2)]
    tags = tags_of(b"".join(rows), session=_SESSION, dealer=300, holder=7, sums=2)
    return {
        "session": _SESSION.hex(),
        "dealer": 300,
        "holder": 7,
        "rows": [_cut(row, SHARE_BYTES) for row in rows],
        "hashes": [[each.hex() for each in d.hashes(row)] for d, row in zip(dealt, rows, strict=True)],
        "tags": [d.tag(row).hex() for d, row in zip(dealt, rows, strict=True)],
        "tags_digest": tags_digest(tags).hex(),
        "columns": [list(columns) for columns in revealed_columns(range(1, 1 + seeds))],
    }


def _row(name: str, columns: int) -> bytes:
    numbers = (int.from_bytes(secret(f"{name}, {k}", 48), "big") % PRIME for k in range(columns))
    return b"".join(number.to_bytes(SHARE_BYTES, "big") for number in numbers)


def _cut(data: bytes, size: int) -> list[str]:
    return [data[start:stop].hex() for start, stop in pairwise(range(0, len(data) + 1, size))]


def _receipt(*dealers: int) -> dict[str, Any]:
    accepted = [(dealer, secret(f"tags of {dealer}")) for dealer in dealers]
    return {
        "accepted": [{"dealer": dealer, "tags_digest": tags.hex()} for dealer, tags in accepted],
        "receipt": receipt(accepted).hex(),
    }


# --- words ----------------------------------------------------------------------------------------

_PARTS: Final = (
    (Part(name="x", size=5, bits=9, bound=Residue()),),
    (
        Part(name="x", size=3, bits=7, bound=Residue()),
        Part(name="y", size=3, bits=20, bound=Count(80)),
        Part(name="z", size=1, bits=33, bound=Residue()),
    ),
)


def _word(*parts: Part) -> dict[str, Any]:
    """What the mask of a seed adds to the hidden count of a sum with these parts."""
    seed = secret(f"word {len(parts)}")
    offset = Encoding(SumSpec(parts=parts), cohort=4).count_offset
    return {
        "parts": [describe_part(part) for part in parts],
        "seed": seed.hex(),
        "offset": offset,
        "word": KeyStream(seed, skip=offset).words(1).tobytes().hex(),
    }


def _masked_parts() -> dict[str, Any]:
    parts = secret("parts", 21)
    return {"parts": parts.hex(), "digest": digest("masked parts", parts).hex()}


# --- hybrid keys ----------------------------------------------------------------------------------


def _made(name: str) -> Encapsulation:
    """What stands for an encapsulation: its ciphertext is only hashed here."""
    return Encapsulation(secret(f"{name} secret"), secret(f"{name} ciphertext", CIPHERTEXT_BYTES))


def _pair_secrets() -> dict[str, Any]:
    """From the encapsulations of two clients for each other to their pair secrets, deposits and masks."""
    lower, higher, index = _made("lower"), _made("higher"), 1
    made = hkdf(
        lower.secret + higher.secret,
        salt=_SESSION,
        info=framed(
            "pair root",
            *(each.to_bytes(4, "big") for each in _IDS),
            digest("ciphertexts", lower.ciphertext, higher.ciphertext),
        ),
    )
    secrets = pair_secrets(lower, higher, session=_SESSION, pair=_IDS, sums=2)
    dealt = [secret("dealt by the lower"), secret("dealt by the higher")]
    keys = [mask_key_of(each, KeyAgreement.HYBRID) for each in dealt]
    info = framed("a pair of masks")
    low, high = _IDS
    ends = ((low, high, dealt[0]), (high, low, dealt[1]))
    return {
        "session": _SESSION.hex(),
        "ids": list(_IDS),
        "encapsulations": [
            {"secret": each.secret.hex(), "ciphertext": each.ciphertext.hex()} for each in (lower, higher)
        ],
        "root": made.hex(),
        "pair_secrets": [each.hex() for each in secrets],
        "tags": [
            secret_tag(each, session=_SESSION, pair=_IDS, sum_index=k).hex() for k, each in enumerate(secrets)
        ],
        "sum_index": index,
        "dealt": [each.hex() for each in dealt],
        "mask_keys": [each.hex() for each in keys],
        "padded": [
            padded(
                secrets[index], secret=own, session=_SESSION, owner=owner, peer=peer, sum_index=index
            ).hex()
            for owner, peer, own in ends
        ],
        "pair_info": info.hex(),
        "pair_seed": Agreement(keys[0])
        .derive(public_key(keys[1]), salt=_SESSION, info=info, more=secrets[index])
        .hex(),
    }


def _hybrid_envelope() -> dict[str, Any]:
    sender, receiver, made = secret("sender"), secret("receiver"), _made("envelope")
    info, text = envelope_info(3, 300), SeededRandom(b"envelope")(66)
    key = Agreement(sender).derive(
        public_key(receiver), salt=_SESSION, info=info + made.ciphertext, more=made.secret
    )
    seed = secret("kem", 64)
    return {
        "session": _SESSION.hex(),
        "ids": [3, 300],
        "secrets": [sender.hex(), receiver.hex()],
        "kem_seed": seed.hex(),
        "kem_key": KemKey(seed).public().hex(),
        "encapsulation": {"secret": made.secret.hex(), "ciphertext": made.ciphertext.hex()},
        "key": key.hex(),
        "plaintext": text.hex(),
        "envelope": (made.ciphertext + AESGCM(key).encrypt(bytes(12), text, _SESSION + info)).hex(),
    }
