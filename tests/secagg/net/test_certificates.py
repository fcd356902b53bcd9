"""Certificates: one form, its own signature, and a bundle that fits the registry exactly."""

from __future__ import annotations

import ast
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from secagg.errors import CertificateError, ParameterError
from secagg.hashing import framed
from secagg.identity_registry import Registry
from secagg.insecure_seeds import seeded_identity
from secagg.keys import Identity
from secagg.net import certificates as c

NOW = 1_800_000_000
ALICE = seeded_identity(b"certificates", 0)
BOB = seeded_identity(b"certificates", 1)
PEM = c.make_certificate(ALICE, now=NOW)
KEY = Ed25519PrivateKey.from_private_bytes(ALICE.secret())
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(BOB.secret())
ROOT = Path(__file__).resolve().parents[3]

Builder: TypeAlias = x509.CertificateBuilder


def loaded(certificate: bytes = PEM) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate)


def named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def builder(**changes: object) -> Builder:
    """What makes Alice's certificate, by hand and with changes."""
    original = loaded()
    parts: dict[str, object] = {
        "subject": original.subject,
        "issuer": original.issuer,
        "key": KEY.public_key(),
        "extensions": list(original.extensions),
        **changes,
    }
    made = x509.CertificateBuilder(parts["issuer"], parts["subject"], parts["key"], 5)  # type: ignore[arg-type]
    made = made.not_valid_before(original.not_valid_before_utc).not_valid_after(original.not_valid_after_utc)
    for extension in parts["extensions"]:  # type: ignore[attr-defined]
        made = made.add_extension(extension.value, extension.critical)
    return made


def signed(made: Builder, key: Ed25519PrivateKey = KEY) -> bytes:
    return made.sign(key, None).public_bytes(Encoding.PEM)


# --- what is made ------------------------------------------------------------------------------------


def test_a_certificate_has_the_key_of_its_identity() -> None:
    assert c.certificate_key(PEM) == ALICE.public
    assert c.certificate_key(loaded().public_bytes(Encoding.DER)) == ALICE.public


def test_subject_and_issuer_are_the_key() -> None:
    assert loaded().subject == loaded().issuer == named(ALICE.public.hex())


def test_a_certificate_is_no_authority_and_serves_both_ends() -> None:
    extensions = loaded().extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    ends = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert sorted(end._name for end in ends) == ["clientAuth", "serverAuth"]


def test_a_certificate_is_valid_from_a_day_before_now() -> None:
    now = datetime.fromtimestamp(NOW, UTC)
    assert loaded().not_valid_before_utc == now - timedelta(days=1)
    assert loaded().not_valid_after_utc == now + timedelta(days=3650)
    short = loaded(c.make_certificate(ALICE, now=NOW, days=1))
    assert short.not_valid_after_utc == now + timedelta(days=1)


def test_the_same_arguments_make_the_same_certificate() -> None:
    assert c.make_certificate(ALICE, now=NOW, days=3650) == PEM
    others = [c.make_certificate(ALICE, now=NOW + 1), c.make_certificate(ALICE, now=NOW, days=3649)]
    others.append(c.make_certificate(BOB, now=NOW))
    assert len({loaded(each).serial_number for each in (PEM, *others)}) == 4


@pytest.mark.parametrize("days", [0, -1, c.MAX_DAYS + 1])
def test_days_are_within_a_century(days: int) -> None:
    c.make_certificate(ALICE, now=NOW, days=c.MAX_DAYS)
    with pytest.raises(ParameterError, match="valid for 1 to 36500 days"):
        c.make_certificate(ALICE, now=NOW, days=days)


# --- what is refused ---------------------------------------------------------------------------------


def test_the_form_is_what_the_tests_below_change() -> None:
    assert c.certificate_key(signed(builder())) == ALICE.public


@pytest.mark.parametrize("data", [b"", b"\x30", b"hello", PEM[:300], PEM + PEM, bytes(range(256))])
def test_something_else_is_no_certificate(data: bytes) -> None:
    for function in (c.certificate_key, c.certificate_pem, c.expiry):
        with pytest.raises(CertificateError, match=r"^not a certificate$"):
            function(data)


def test_bytes_after_a_certificate_are_refused() -> None:
    der = loaded().public_bytes(Encoding.DER)
    with pytest.raises(CertificateError):
        c.certificate_key(der + b"\0")


def test_a_signature_by_another_key_is_refused() -> None:
    """The subject is right, and so is the key; but whoever made this does not have it."""
    with pytest.raises(CertificateError, match="its own key did not sign"):
        c.certificate_key(signed(builder(), OTHER_KEY))


def test_every_changed_byte_is_refused() -> None:
    der = loaded().public_bytes(Encoding.DER)
    for position in range(len(der)):
        changed = bytearray(der)
        changed[position] ^= 1
        with pytest.raises(CertificateError):
            c.certificate_key(bytes(changed))


def test_another_kind_of_key_is_refused() -> None:
    key = ec.derive_private_key(5, ec.SECP256R1())
    made = builder(key=key.public_key()).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(
        CertificateError, match="not a self-signed Ed25519 certificate as secagg keygen makes"
    ):
        c.certificate_key(made)


def without(kind: type[x509.ExtensionType]) -> list[x509.Extension[x509.ExtensionType]]:
    return [each for each in loaded().extensions if not isinstance(each.value, kind)]


def extended(value: x509.ExtensionType, *, critical: bool) -> list[x509.Extension[x509.ExtensionType]]:
    return [*without(type(value)), x509.Extension(value.oid, critical, value)]


OTHER_FORMS: dict[str, Callable[[], Builder]] = {
    "another subject": lambda: builder(subject=named("server"), issuer=named("server")),
    "another's subject": lambda: builder(subject=named(BOB.public.hex()), issuer=named(BOB.public.hex())),
    "another issuer": lambda: builder(issuer=named(BOB.public.hex())),
    "an authority": lambda: builder(extensions=extended(x509.BasicConstraints(True, None), critical=True)),
    "an extension more": lambda: builder(
        extensions=extended(x509.SubjectAlternativeName([x509.DNSName("example.org")]), critical=False)
    ),
    "an extension less": lambda: builder(extensions=without(x509.BasicConstraints)),
    "none": lambda: builder(extensions=[]),
    "an unknown one": lambda: builder(
        extensions=[
            *loaded().extensions,
            x509.Extension(
                x509.ObjectIdentifier("1.2.3.4"),
                True,
                x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\0"),
            ),
        ]
    ),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_another_form_is_refused(name: str) -> None:
    with pytest.raises(
        CertificateError, match="not a self-signed Ed25519 certificate as secagg keygen makes"
    ):
        c.certificate_key(signed(OTHER_FORMS[name]()))


def test_an_extension_that_does_not_parse_is_refused() -> None:
    name = x509.BasicConstraints.oid
    odd = [x509.Extension(name, True, x509.UnrecognizedExtension(name, b"\xff"))]
    with pytest.raises(CertificateError, match="not a self-signed"):
        c.certificate_key(signed(builder(extensions=odd)))


# --- when it is valid --------------------------------------------------------------------------------


def test_dates_are_checked() -> None:
    end = NOW + 3650 * 86400
    assert c.expiry(PEM) == end
    for moment in (NOW - 86400, NOW, end - 1):
        c.check_dates(PEM, now=moment)
    with pytest.raises(CertificateError, match="not valid before 2027-01-14 08:00 UTC"):
        c.check_dates(PEM, now=NOW - 86401)
    for moment in (end, end + 1):
        with pytest.raises(CertificateError, match="expired at 2037-01-12 08:00 UTC"):
            c.check_dates(PEM, now=moment)


# --- bundles -----------------------------------------------------------------------------------------

IDENTITIES = {k: seeded_identity(b"bundle", k) for k in (3, 1, 70_000)}
MEMBERS = {k: identity.public for k, identity in IDENTITIES.items()}
CERTIFICATES = {k: c.make_certificate(identity, now=NOW) for k, identity in IDENTITIES.items()}
REGISTRY = Registry(4, MEMBERS)


def test_a_bundle_is_in_order_of_the_members() -> None:
    bundle = c.bundle_for(REGISTRY, CERTIFICATES.values())
    assert list(bundle.items()) == [(k, CERTIFICATES[k]) for k in sorted(CERTIFICATES)]
    assert c.bundle_for(Registry(4, {}), []) == {}


def test_a_bundle_is_split_into_what_it_was_joined_from() -> None:
    data = b"some words\n" + b"--- and more\n".join(CERTIFICATES.values())
    assert c.bundle_for(REGISTRY, c.split_bundle(data)) == CERTIFICATES
    assert c.split_bundle(b"") == c.split_bundle(b"-----BEGIN CERTIFICATE-----") == []


def test_a_stranger_in_a_bundle_is_refused() -> None:
    with pytest.raises(
        CertificateError, match=f"a certificate of no member .public key {ALICE.public.hex()}"
    ):
        c.bundle_for(REGISTRY, [*CERTIFICATES.values(), PEM])


def test_a_member_without_a_certificate_is_refused() -> None:
    with pytest.raises(CertificateError, match=r"lacks certificates of 1 members \(70000\)"):
        c.bundle_for(REGISTRY, [CERTIFICATES[1], CERTIFICATES[3]])
    with pytest.raises(CertificateError, match=r"lacks certificates of 9 members \(0, 1, 2, 3, 4, \.\.\.\)"):
        c.bundle_for(Registry(1, {k: seeded_identity(b"many", k).public for k in range(9)}), [])


def test_a_second_certificate_of_a_member_is_refused() -> None:
    renewed = c.make_certificate(IDENTITIES[3], now=NOW + 5)
    with pytest.raises(CertificateError, match="two certificates of member 3"):
        c.bundle_for(REGISTRY, [*CERTIFICATES.values(), renewed])


def test_a_forged_certificate_in_a_bundle_is_refused() -> None:
    with pytest.raises(CertificateError, match="its own key did not sign"):
        c.bundle_for(Registry(1, {0: ALICE.public}), [signed(builder(), OTHER_KEY)])


# --- one key, three kinds of signatures ----------------------------------------------------------------


def first_bytes_elsewhere() -> set[bytes]:
    handshakes = b"\x20" * 64 + b"TLS 1.3, server CertificateVerify\0"
    return {handshakes[:1], loaded().tbs_certificate_bytes[:1]}


def purposes_of_signatures() -> set[str]:
    """The literal first argument of every `sign` and `verify` in the package, read from its source."""
    found = set()
    for path in (ROOT / "secagg").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".sign", "verify")):
                values = [each.value for each in node.args if isinstance(each, ast.Constant)]
                found |= {value for value in values if isinstance(value, str)}
    return found | {"registry"}


def test_what_we_sign_never_begins_like_a_handshake_or_a_certificate() -> None:
    purposes = purposes_of_signatures()
    assert {"advert", "key list", "survivors", "registry"} <= purposes
    elsewhere = first_bytes_elsewhere()
    assert elsewhere == {b"\x20", b"\x30"}
    for purpose in purposes:
        for fields in ((), (b"",), (b"\x20" * 64,), (loaded().tbs_certificate_bytes,)):
            assert framed(f"signature: {purpose}", *fields)[:1] == b"\0" not in elsewhere


def test_a_label_of_any_length_begins_with_a_zero_byte() -> None:
    """Its length is written in eight bytes, of which the first is that of 2^56 characters or more."""
    assert framed("signature: " + "x" * 100_000)[:5] == bytes(5)


def test_a_certificates_signature_is_none_of_ours() -> None:
    """And the other way round: a string that `Identity.sign` signs is no certificate's."""
    certificate = loaded()
    KEY.public_key().verify(certificate.signature, certificate.tbs_certificate_bytes)
    ours = ALICE.sign("registry", certificate.tbs_certificate_bytes)
    assert ours != certificate.signature
    assert ALICE._key.sign(certificate.tbs_certificate_bytes) == certificate.signature


# --- OpenSSL's opinion, before the handshakes of test_tls ------------------------------------------------


def test_openssl_takes_it_for_a_leaf_and_not_for_a_ca() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=PEM.decode())
    assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 0}


def test_identities_are_told_apart_by_their_subjects() -> None:
    subjects = {loaded(c.make_certificate(Identity.generate(), now=NOW)).subject for _ in range(20)}
    assert len(subjects) == 20
