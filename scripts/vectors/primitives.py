"""Vectors of every step between two secrets and a masked, packed, decoded number.

Each group is a list of cases with inputs and outputs; `tests/secagg/test_vectors.py` replays them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np

from scripts.vectors.anchors import ANCHORS
from scripts.vectors.complete_plays import TABLE
from scripts.vectors.describe import describe_part, describe_registry, describe_table
from scripts.vectors.plays import PLAYS
from scripts.vectors.samples import sample_messages
from scripts.vectors.share_primitives import secret as _secret
from scripts.vectors.share_primitives import share_primitives
from secagg import messages as m
from secagg import residue_packing, shamir
from secagg.bitmap import pack_positions
from secagg.canonical_msgpack import encode_fields
from secagg.cohort_members import invitation_digest, ring_digest, ring_session_id, session_id
from secagg.hashing import digest, framed
from secagg.hybrid_keys import encapsulate
from secagg.input_encoding import Encoding
from secagg.insecure_seeds import SeededRandom
from secagg.keys import (
    Agreement,
    Identity,
    envelope_info,
    mask_context,
    pair_info,
    public_key,
    seed_commitment,
    self_mask_seed,
)
from secagg.mask_keystream import KeyStream, apply_masks
from secagg.message_records import Advert, encode_ids
from secagg.query_context import content_digest, query_digest
from secagg.share_envelopes import EnvelopeCipher
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec
from secagg.trust_levels import Trust

_SESSION: Final = digest("vector", b"session")
_CONTEXT: Final = digest("vector", b"context")


def primitives() -> dict[str, Any]:
    """The whole file."""
    return {
        "about": "Steps of the protocol one by one; see README.md.",
        "published": ANCHORS,
        "tagged_digests": _tagged_digests(),
        "named_digests": _named_digests(),
        "key_schedule": _key_schedule(),
        "keystreams": [_keystream(name) for name in ("one", "two")],
        "masks": [_mask(bits) for bits in (1, 7, 8, 9, 16, 20, 32, 33, 63, 64)],
        "shamir": [_shamir(*case) for case in ((1, 1), (2, 3), (3, 4), (5, 9))],
        "envelopes": [_envelope(sums) for sums in (1, 3)],
        **share_primitives(),
        "signatures": _signatures(),
        "packing": [_packing(bits) for bits in (1, 3, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 33, 53, 63, 64)],
        "bitmaps": [_bitmap(*case) for case in (((0, 2), 3), ((), 1), ((7,), 8), ((0, 8, 11), 12))],
        "codec": [_codec(*values) for values in _FIELDS],
        "messages": [_message(message) for message in sample_messages(_SESSION)],
        "fixed_point": [_fixed_point(part, cohort, values) for part, cohort, values in _REALS],
        "totals": [_total(part, cohort, inputs) for part, cohort, inputs in _TOTALS],
    }


# --- hashes and keys ------------------------------------------------------------------------------


def _tagged_digests() -> list[dict[str, Any]]:
    cases: list[tuple[str, tuple[bytes, ...]]] = [
        ("test", ()),
        ("test", (b"",)),
        ("test", (b"a", b"bc")),
        ("test", (b"ab", b"c")),
        ("other", (b"abc",)),
    ]
    return [
        {
            "purpose": purpose,
            "fields": [field.hex() for field in values],
            "framed": framed(purpose, *values).hex(),
            "digest": digest(purpose, *values).hex(),
        }
        for purpose, values in cases
    ]


def _named_digests() -> dict[str, Any]:
    invitation, key_list, query = b"an invitation", b"a key list", b"a query"
    registry = PLAYS[Trust.MALICIOUS].registry
    described = describe_registry(registry)
    assert registry is not None
    assert described is not None
    return {
        "invitation": {"frame": invitation.hex(), "digest": invitation_digest(invitation).hex()},
        "session": {
            "invitation": invitation.hex(),
            "key_list": key_list.hex(),
            "digest": session_id(invitation, key_list).hex(),
        },
        **_ring_digests(invitation),
        "query": {"frame": query.hex(), "digest": query_digest(query).hex()},
        "query_content": {
            "kind": "update",
            "payload": query.hex(),
            "digest": content_digest("update", query).hex(),
        },
        "specs": {kind: spec.digest.hex() for kind, spec in TABLE.items()},
        "table": {"table": describe_table(TABLE), "digest": TABLE.digest.hex()},
        "registry": {**described, "digest": registry.digest.hex()},
    }


def _ring_digests(invitation: bytes) -> dict[str, Any]:
    """The two digests that stand for the key list on a ring; the adverts are of a session of one sum."""
    adverts = [
        Advert(member, _secret(f"channel {k}"), b"", (_secret(f"mask {k}"),), (_secret(f"seed {k}"),))
        for k, member in enumerate((3, 7, 300))
    ]
    digest, ids = ring_digest(adverts), encode_ids(advert.member for advert in adverts)
    return {
        "ring": {"adverts": [advert.encode().hex() for advert in adverts], "digest": digest.hex()},
        "ring_sessions": [_ring_session(invitation, digest, members) for members in (b"", ids)],
    }


def _ring_session(invitation: bytes, ring: bytes, members: bytes) -> dict[str, Any]:
    """The id of a session that does not name its members, or does."""
    size, neighbours, threshold = 1 << 20, 200, 101
    session = ring_session_id(
        invitation, size=size, neighbours=neighbours, threshold=threshold, ring=ring, members=members
    )
    return {
        "invitation": invitation.hex(),
        "size": size,
        "neighbours": neighbours,
        "threshold": threshold,
        "ring": ring.hex(),
        "members": members.hex(),
        "digest": session.hex(),
    }


def _key_schedule() -> dict[str, Any]:
    """From two one-time secrets to the seeds of masks."""
    low, high, seed = _secret("low"), _secret("high"), _secret("seed")
    bound = {name: digest("vector", name.encode()) for name in ("session", "query", "spec", "cohort")}
    context = mask_context(**bound, sum_index=2, roster=b"\x0d")
    info = pair_info(context, 7, 300)
    pair = Agreement(low).derive(public_key(high), salt=bound["session"], info=info)
    own = self_mask_seed(seed, session=bound["session"], context=context, owner=7)
    return {
        **{name: value.hex() for name, value in bound.items()},
        "sum_index": 2,
        "roster": "0d",
        "mask_context": context.hex(),
        "ids": [7, 300],
        "secrets": [low.hex(), high.hex()],
        "publics": [public_key(low).hex(), public_key(high).hex()],
        "pair_info": info.hex(),
        "pair_seed": pair.hex(),
        "owner": 7,
        "self_mask": seed.hex(),
        "self_mask_commitment": seed_commitment(seed, owner=7, sum_index=2).hex(),
        "self_mask_seed": own.hex(),
    }


def _signatures() -> list[dict[str, Any]]:
    """What each kind of signature covers; the one on survivors field by field."""
    identity = Identity.from_secret(_secret("identity"))
    query, spec, receipt = (digest("vector", name) for name in (b"query", b"spec", b"receipt"))
    asked = (_SESSION, (2).to_bytes(4, "big"), query, spec, b"\x0f")
    rows: list[tuple[str, tuple[bytes, ...]]] = [
        ("advert", (_CONTEXT, b"the body of an advert")),
        ("key list", (_SESSION,)),
        ("survivors", (*asked, b"\x0d")),
        ("registry", (digest("vector", b"registry"),)),
        ("share tags", (_SESSION, b"tags")),
        ("deposit", (_SESSION, receipt, b"deposits")),
        ("masked input", (*asked, receipt, digest("masked parts", b"parts"), bytes(8), b"words")),
        ("reveal", (*asked, b"\x0d", b"\x01\x03", receipt, b"\x0f", b"shares", b"hidden hashes")),
    ]
    return [
        {
            "secret": _secret("identity").hex(),
            "public": identity.public.hex(),
            "purpose": purpose,
            "fields": [field.hex() for field in values],
            "signed": framed(f"signature: {purpose}", *values).hex(),
            "signature": identity.sign(purpose, *values).hex(),
        }
        for purpose, values in rows
    ]


# --- masks, shares, envelopes ---------------------------------------------------------------------


def _keystream(name: str) -> dict[str, Any]:
    seed = _secret(f"keystream {name}")
    return {"seed": seed.hex(), "words": KeyStream(seed).words(8).tolist()}


def _mask(bits: int) -> dict[str, Any]:
    """The mask that a seed adds to zeros: a part of 5 elements, and the 64-bit count behind it."""
    seed = _secret(f"mask {bits}")
    residues = (np.zeros(5, residue_packing.dtype_for(bits)), np.zeros(1, residue_packing.dtype_for(64)))
    apply_masks(residues, plus=[seed])
    residue_packing.reduce(residues[0], bits)
    return {"seed": seed.hex(), "bits": bits, "mask": residues[0].tolist(), "count": residues[1].tolist()}


def _shamir(threshold: int, holders: int) -> dict[str, Any]:
    secret, random = _secret(f"shamir {threshold}"), SeededRandom(b"shamir", bytes([threshold]))
    drawn = random(48 * (threshold - 1)) if threshold > 1 else b""
    shares = shamir.deal(secret, threshold=threshold, holders=holders, random=_replay(drawn))
    return {
        "secret": secret.hex(),
        "threshold": threshold,
        "random": drawn.hex(),
        "shares": [shamir.shares_to_bytes([share]).hex() for share in shares],
    }


def _replay(drawn: bytes) -> Any:
    """Randomness that hands out `drawn` in order."""
    left = [drawn]

    def random(count: int) -> bytes:
        taken, left[0] = left[0][:count], left[0][count:]
        return taken

    return random


def _envelope(sums: int) -> dict[str, Any]:
    sender, receiver = _secret("sender"), _secret("receiver")
    text = SeededRandom(b"envelope")(66 * sums)
    channel = EnvelopeCipher(sender, session=_SESSION, owner=3, kem=None, encapsulate=encapsulate)
    info = envelope_info(3, 300)
    return {
        "session": _SESSION.hex(),
        "ids": [3, 300],
        "secrets": [sender.hex(), receiver.hex()],
        "key": Agreement(sender).derive(public_key(receiver), salt=_SESSION, info=info).hex(),
        "plaintext": text.hex(),
        "envelope": channel.seal(text, receiver=Advert(300, public_key(receiver), b"", (), ())).hex(),
    }


# --- the wire -------------------------------------------------------------------------------------


def _packing(bits: int) -> dict[str, Any]:
    most = (1 << bits) - 1
    stream = KeyStream(_secret(f"packing {bits}")).words(9)
    values = [0, 1, most, most >> 1, *(int(word) & most for word in stream)]
    array = np.array(values, np.uint64).astype(residue_packing.dtype_for(bits))
    return {"bits": bits, "values": values, "packed": residue_packing.pack(array, bits).hex()}


def _bitmap(positions: tuple[int, ...], size: int) -> dict[str, Any]:
    return {"size": size, "positions": list(positions), "bitmap": pack_positions(positions, size).hex()}


_FIELDS: Final[list[tuple[int | bytes | str, ...]]] = [
    (0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1),
    (b"", b"\x00", bytes(255), bytes(256)),
    ("", "a", "a" * 31, "a" * 32, "a" * 64),
    (1, 8, bytes(32)),
]


def _codec(*values: int | bytes | str) -> dict[str, Any]:
    """Byte strings are given as {"bytes": hex}."""
    shown = [{"bytes": v.hex()} if isinstance(v, bytes) else v for v in values]
    return {"fields": shown, "frame": encode_fields(*values).hex()}


def _message(message: m.Message) -> dict[str, Any]:
    values = {column.name: getattr(message, column.name) for column in fields(message)}
    shown = {name: {"bytes": v.hex()} if isinstance(v, bytes) else v for name, v in values.items()}
    return {"type": type(message).__name__, "fields": shown, "frame": message.encode().hex()}


# --- numbers --------------------------------------------------------------------------------------

_REALS: Final[list[tuple[Part, int, list[float]]]] = [
    (Part(name="x", size=6, bits=16, bound=LInf(1.0)), 4, [0.0, 1.0, -1.0, 0.3, -0.3, -1e-9]),
    (Part(name="x", size=3, bits=20, bound=LInf(0.25)), 3, [0.5, -0.5, 0.125]),  # two are clipped
    (Part(name="x", size=4, bits=24, bound=L2(5.0)), 10, [3.0, -4.0, 0.0, 0.0]),  # just within
    (Part(name="x", size=4, bits=33, bound=L2(1.5)), 100, [30.0, -40.0, 1e-3, 0.0]),  # clipped
    (Part(name="x", size=3, bits=64, bound=LInf(2.0)), 7, [2.0, -2.0, -1 / 3]),
    (Part(name="x", size=2, bits=4, bound=LInf(1.0)), 7, [0.5, -0.5]),  # one level on either side
]


def _fixed_point(part: Part, cohort: int, values: list[float]) -> dict[str, Any]:
    """One client's values as residues; `rounding` is the seed of the stochastic rounding."""
    encoding, seed = Encoding(SumSpec(parts=(part,)), cohort=cohort), _secret(f"rounding {part.bits}")
    encoded = encoding.encode({part.name: values}, KeyStream(seed))
    return {
        "part": describe_part(part),
        "cohort": cohort,
        "levels": encoding.levels(part),
        "scale": encoding.scale(part),
        "rounding": seed.hex(),
        "values": values,
        "residues": encoded.residues[0].tolist(),
    }


_TOTALS: Final[list[tuple[Part, int, list[list[int]]]]] = [
    # Negative numbers are the upper half of the ring: -1, -3 and 5 in two's complement.
    (Part(name="x", size=3, bits=12, bound=LInf(1.0)), 2, [[4095, 4095, 2], [0, 4094, 3]]),
    # The most negative and the most positive honest total.
    (Part(name="x", size=2, bits=12, bound=LInf(1.0)), 2, [[4096 - 1023, 1023], [4096 - 1023, 1023]]),
    # A sum of two negatives that runs over 2^64 and comes back negative.
    (Part(name="x", size=1, bits=64, bound=L2(8.0)), 2, [[2**64 - 2**40], [2**64 - 2**41]]),
    # A dishonest total beyond half of the ring decodes as negative.
    (Part(name="x", size=1, bits=8, bound=LInf(1.0)), 2, [[100], [100]]),
    (Part(name="x", size=2, bits=9, bound=Count(80)), 3, [[80, 0], [80, 1], [80, 2]]),
    (Part(name="x", size=2, bits=5, bound=Residue()), 3, [[31, 16], [1, 16], [3, 1]]),
]


def _total(part: Part, cohort: int, inputs: list[list[int]]) -> dict[str, Any]:
    """The residues of several clients, their sum in the ring, and the numbers it stands for."""
    encoding = Encoding(SumSpec(parts=(part,)), cohort=cohort)
    accumulator = encoding.zeros()
    for row in inputs:
        accumulator[0][:] += np.array(row, np.uint64).astype(residue_packing.dtype_for(part.bits))
        accumulator[1][:] += np.uint64(1)
    residue_packing.reduce(accumulator[0], part.bits)
    residues = accumulator[0].tolist()
    total = encoding.decode(accumulator, contributors=len(inputs), invited=cohort)
    return {
        "part": describe_part(part),
        "cohort": cohort,
        "inputs": inputs,
        "residues": residues,
        "values": total[part.name].tolist(),
    }
