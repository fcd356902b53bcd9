"""What the CPU time of a secure sum is spent on."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Cost(StrEnum):
    """One row of the balance. The value is its name in JSON; `LABELS` has the one in tables."""

    DH = "DH"
    HKDF = "HKDF"
    SHAMIR = "Shamir"
    AEAD = "AEAD"
    SIGN = "sign"
    VERIFY = "verify"
    HASHING = "hashing"
    MASKS = "masks"
    ENCODING = "encoding"
    CODEC = "codec"
    REST = "everything else"


LABELS: Final = {
    Cost.DH: "DH: X25519",
    Cost.HKDF: "HKDF-SHA256",
    Cost.SHAMIR: "Shamir's shares",
    Cost.AEAD: "AEAD: AES-256-GCM",
    Cost.SIGN: "Ed25519: sign",
    Cost.VERIFY: "Ed25519: verify",
    Cost.HASHING: "hashing: SHA-256",
    Cost.MASKS: "masks: AES-CTR, add",
    Cost.ENCODING: "encoding, bit packing",
    Cost.CODEC: "codec: frames, records",
    Cost.REST: "everything else",
}

PRIMITIVES: Final = (
    Cost.DH, Cost.HKDF, Cost.SHAMIR, Cost.AEAD, Cost.SIGN, Cost.VERIFY, Cost.HASHING, Cost.MASKS,
)  # fmt: skip
# Encoding is work on the vector itself, but it is Python and numpy of ours: it counts against us.
AROUND: Final = (Cost.ENCODING, Cost.CODEC, Cost.REST)
