"""Published vectors of the primitives, and published figures: the only values that are not of our making.

They show that the primitives underneath are the ones they are called.
"""

from __future__ import annotations

from typing import Any, Final

ANCHORS: Final[dict[str, dict[str, Any]]] = {
    "x25519": {
        "source": "RFC 7748, section 6.1",
        "secret_a": "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
        "public_a": "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "secret_b": "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        "public_b": "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
        "shared": "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
    },
    "hkdf_sha256": {
        "source": "RFC 5869, test case 1: the first 32 of its 42 bytes",
        "material": "0b" * 22,
        "salt": "000102030405060708090a0b0c",
        "info": "f0f1f2f3f4f5f6f7f8f9",
        "output": "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf",
    },
    "ed25519": {
        "source": "RFC 8032, section 7.1, test 2",
        "secret": "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "public": "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "message": "72",
        "signature": "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    },
    "aes128_ctr": {
        "source": "NIST SP 800-38A, F.5.1; the keystream is plaintext XOR ciphertext",
        "key": "2b7e151628aed2a6abf7158809cf4f3c",
        "counter": "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
        "plaintext": "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        "ciphertext": "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee",
    },
    "aes256_gcm": {
        "source": "The Galois/Counter Mode of Operation, test case 14: key and nonce are zero",
        "key": "00" * 32,
        "plaintext": "00" * 16,
        "ciphertext": "cea7403d4d606b6e074ec5d3baf39d18",
        "tag": "d0d1c8a799996bf0265b98b5d48ab919",
    },
    "expansion": {
        "source": "Practical Secure Aggregation for Privacy-Preserving Machine Learning: a client's traffic"
        " over the plain vector's, (256 (7n - 4) + m ceil(log2 R)) / (m ceil(log2 R_U)), R = n (R_U - 1) + 1",
        "input_bits": 16,
        "figures": [
            {"clients": 1024, "elements": 1048576, "factor": 1.73},
            {"clients": 16384, "elements": 1048576, "factor": 3.62},
            {"clients": 16384, "elements": 16777216, "factor": 1.98},
        ],
    },
}
