"""Negative vectors of a client with hybrid keys: KEM keys, and envelopes with ciphertexts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from scripts.vectors.recorder import EVERYBODY, SUMS, THRESHOLD, Book, Recorder, Session
from secagg import messages as m
from secagg.cohort_members import invitation_digest
from secagg.hybrid_keys import KEM_KEY_BYTES, KeyAgreement
from secagg.message_records import Advert, Format
from secagg.trust_levels import Trust


class HybridSession(Session):
    """An honest session with hybrid keys, up to where a case wants to cheat."""

    def __init__(self) -> None:
        changes: dict[str, Any] = {"key_agreement": KeyAgreement.HYBRID}
        super().__init__(Trust.CURIOUS, Recorder(Trust.CURIOUS, name="hybrid", policy_changes=changes))


# Numbers of 12 bits, of which none may be 3329 or more; then a seed.
NOT_REDUCED: Final = b"\xff" * 3 + bytes(KEM_KEY_BYTES - 3)


def hybrid_refusals(book: Book) -> None:
    _invitations(book)
    _key_lists(book)
    _deliveries(book)


def _invitations(book: Book) -> None:
    session = HybridSession()
    start = book.start("new, hybrid", session.rig)
    weaker = session.rig.invitation(agreement="x25519")
    book.case("invitation: a weaker key agreement", start, weaker, "WrongKeyAgreement")


def _key_lists(book: Book) -> None:
    session = HybridSession().advertise()
    start, context = book.start("advertised, hybrid", session.rig), invitation_digest(session.invitation)
    own, *others = (session.adverts[k] for k in EVERYBODY)

    def refuse(name: str, adverts: Iterable[Advert], error: str) -> None:
        blob = b"".join(advert.encode() for advert in adverts)
        frame = m.KeyList(context, THRESHOLD, blob).encode()
        book.case(f"key list: {name}", start, frame, error)

    first, *rest = others
    refuse("a KEM key that is not reduced", [own, replace(first, kem_key=NOT_REDUCED), *rest], "BadKey")
    other = bytes([own.kem_key[0] ^ 1]) + own.kem_key[1:]
    refuse("another KEM key of this client", [replace(own, kem_key=other), *others], "BadKey")
    bare = [replace(advert, kem_key=b"") for advert in (own, *others)]
    refuse("no KEM keys", bare, "MalformedMessage")


def _deliveries(book: Book) -> None:
    """Envelopes that do not open are no reason to refuse: the client reports them. But few of them are."""
    session = HybridSession().advertise()
    session.rig.share(0, session.key_list, len(EVERYBODY))
    start, size = book.start("shared, hybrid", session.rig), session.rig.form.parcel_bytes
    few = m.Delivery(session.cohort.session, _parcels(1, size=size)).encode()
    book.case("delivery: of too few clients, hybrid", start, few, "FewContributors")
    size = Format(SUMS, signed=False).parcel_bytes
    short = m.Delivery(session.cohort.session, _parcels(1, 2, 3, size=size)).encode()
    book.case("delivery: of envelopes without ciphertexts", start, short, "MalformedMessage")


def _parcels(*senders: int, size: int) -> bytes:
    """Parcels with nothing but zeros after the id."""
    return b"".join(sender.to_bytes(4, "big") + bytes(size - 4) for sender in senders)
