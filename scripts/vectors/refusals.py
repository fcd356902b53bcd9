"""Negative vectors: for every refusal, a machine to build, what to feed it, and the frame it must refuse.

A rig plays the server by hand and cheats at the last frame. `clients` holds configurations, `starts` what a
client of some configuration has gone through, `cases` the offending frame and the name of the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scripts.vectors.hybrid_refusals import hybrid_refusals
from scripts.vectors.hybrid_server_refusals import hybrid_server_refusals
from scripts.vectors.malformed import malformed_frames
from scripts.vectors.noise_refusals import noise_refusals
from scripts.vectors.noise_server_refusals import noise_server_refusals
from scripts.vectors.recorder import EVERYBODY, ROUND, SUMS, THRESHOLD, Book, Recorder, Session
from scripts.vectors.ring_refusals import ring_refusals
from scripts.vectors.ring_server_refusals import ring_server_refusals
from scripts.vectors.samples import sample_messages
from scripts.vectors.sequence_refusals import sequence_refusals
from scripts.vectors.server_refusals import server_refusals
from secagg import messages as m
from secagg.cohort_members import Cohort, invitation_digest, session_id
from secagg.message_records import ID_BYTES, Advert, Format, Parcel
from secagg.query_context import content_digest
from secagg.transitions import CLIENT_MOVES
from secagg.trust_levels import Trust
from tests.attacks.rig import Rig

_BIG_PRIME: Final = (1 << 255) - 19


def _ready(trust: Trust = Trust.MALICIOUS) -> Session:
    """A session whose set-up is done."""
    return Session(trust).deliver()


def refusals(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The whole file. `recorded` are the clients of hybrid sessions of the file before."""
    book = Book()
    _decoding(book)
    _invitations(book)
    _key_lists(book)
    _deliveries(book)
    _queries(book)
    _groups(book)
    _survivors(book)
    _confirmations(book)
    _order(book)
    ring_refusals(book)
    noise_refusals(book)
    hybrid_refusals(book)
    sequence_refusals(book)
    about = "Frames that must be refused, each with the error it must raise; see README.md."
    return {
        "about": about,
        "clients": book.clients,
        "starts": book.chained_starts(),
        "cases": book.cases,
        **server_refusals(),
        **ring_server_refusals(),
        **noise_server_refusals(),
        **hybrid_server_refusals(recorded),
    }


# --- the decoder ----------------------------------------------------------------------------------


def _decoding(book: Book) -> None:
    session = Session(Trust.MALICIOUS)
    start = book.start("new", session.rig)
    for name, frame, error in malformed_frames(session.invitation):
        book.case(f"decoder: {name}", start, frame, error)
    form, policy = Format(SUMS, signed=True), session.rig.policy
    lists = policy.max_cohort * (max(form.neighbour_bytes, form.parcel_bytes) + ID_BYTES)
    limit = max(lists, policy.max_query_bytes + policy.max_cohort) + 256
    book.case("decoder: a frame above the limit", start, bytes(limit + 1), "OversizeMessage")
    book.case("decoder: zeros, as many as the limit allows", start, bytes(limit), "MalformedMessage")


# --- set-up ---------------------------------------------------------------------------------------


def _invitations(book: Book) -> None:
    session = Session(Trust.MALICIOUS)
    start, rig = book.start("new", session.rig), session.rig
    other = bytes(32)
    book.case("invitation: another trust level", start, rig.invitation(trust="curious_server"), "WrongTrust")
    book.case("invitation: an unknown trust level", start, rig.invitation(trust="honest"), "WrongTrust")
    hybrid = rig.invitation(agreement="x25519+ml-kem-768")
    book.case("invitation: another key agreement", start, hybrid, "WrongKeyAgreement")
    unknown = rig.invitation(agreement="rsa")
    book.case("invitation: an unknown key agreement", start, unknown, "WrongKeyAgreement")
    book.case("invitation: no sums", start, rig.invitation(sums=0), "TooManySums")
    book.case("invitation: too many sums", start, rig.invitation(sums=SUMS + 1), "TooManySums")
    book.case("invitation: another table", start, rig.invitation(table=other), "WrongTable")
    book.case("invitation: another registry", start, rig.invitation(registry=other), "WrongRegistry")
    book.case("invitation: no registry", start, rig.invitation(registry=b""), "WrongRegistry")
    live = book.start("new, in another session", rig, memory={"live": True})
    book.case("invitation: a parallel session", live, session.invitation, "SessionLive")
    unsigned = Session(Trust.CURIOUS)
    start = book.start("new, unsigned", unsigned.rig)
    signed = unsigned.rig.invitation(registry=other)
    book.case("invitation: a registry in an unsigned session", start, signed, "WrongRegistry")


def _key_lists(book: Book) -> None:
    session = Session(Trust.MALICIOUS).advertise()
    start, rig, own = book.start("advertised", session.rig), session.rig, session.adverts
    context = invitation_digest(session.invitation)

    def refuse(name: str, adverts: Iterable[Advert], error: str, threshold: int = THRESHOLD) -> None:
        blob = b"".join(advert.encode() for advert in adverts)
        book.case(f"key list: {name}", start, m.KeyList(context, threshold, blob).encode(), error)

    honest = [own[k] for k in EVERYBODY]
    outsider, registered = _advert(rig, context, 6), _advert(rig, context, 4)
    refuse("a cohort below the minimum", honest[:2], "SmallCohort")
    refuse("a cohort above the maximum", [*honest, registered, _advert(rig, context, 5)], "LargeCohort")
    refuse("without this client", honest[1:], "BadRoster")
    refuse("with other keys of this client", [_advert(rig, context, 0), *honest[1:]], "BadKey")
    refuse("a threshold that colluders can split", honest, "SmallThreshold", threshold=2)
    refuse("a threshold above the cohort", honest, "SmallCohort", threshold=5)
    refuse("a client outside the registry", [*honest, outsider], "UnknownPeer", threshold=4)
    refuse("an id twice", [*honest, honest[3]], "MalformedMessage")
    refuse("ids out of order", [honest[0], honest[2], honest[1], honest[3]], "MalformedMessage")
    for name, key in _bad_keys(honest).items():
        refuse(name, [*honest[:3], _replaced(rig, context, honest[3], key)], "BadKey")
    refuse("a key under a signature of another client", [*honest[:3], _resigned(rig, context, honest[3])],
           "BadSignature")  # fmt: skip
    blob = b"".join(advert.encode() for advert in honest)
    short = m.KeyList(context, THRESHOLD, blob[:-1]).encode()
    book.case("key list: records of another length", start, short, "MalformedMessage")
    foreign = m.KeyList(bytes(32), THRESHOLD, blob).encode()
    book.case("key list: of another invitation", start, foreign, "WrongSession")
    known = session_id(session.invitation, session.key_list).hex()
    seen = book.start("advertised, the session is known", rig, memory={"sessions": [known]})
    book.case("key list: a session seen before", seen, session.key_list, "RepeatedSession")


def _advert(rig: Rig, context: bytes, member: int) -> Advert:
    """Keys that the attacker made, signed with the identity of `member`."""
    keys = [bytes([9 + member, k + 1]) + bytes(30) for k in range(SUMS + 1)]
    return signed_advert(
        rig, context, Advert(member, keys[0], b"", tuple(keys[1:]), (bytes(32),) * SUMS), member
    )


def signed_advert(rig: Rig, context: bytes, advert: Advert, signer: int) -> Advert:
    """The same keys, signed by a client."""
    return replace(advert, signature=rig.identity(signer).sign("advert", context, advert.body))


def _replaced(rig: Rig, context: bytes, advert: Advert, key: bytes) -> Advert:
    """`advert` with its first mask key replaced, and signed again by its corrupt owner."""
    changed = replace(advert, mask_keys=(key, *advert.mask_keys[1:]))
    return signed_advert(rig, context, changed, advert.member)


def _resigned(rig: Rig, context: bytes, advert: Advert) -> Advert:
    return signed_advert(rig, context, advert, 4)


def _bad_keys(adverts: Sequence[Advert]) -> dict[str, bytes]:
    order_eight = 325606250916557431795983626356110631294008115727848805560023387167927233504
    return {
        "the key zero": bytes(32),
        "the key one": (1).to_bytes(32, "little"),
        "the key minus one": (_BIG_PRIME - 1).to_bytes(32, "little"),
        "a key of order eight": order_eight.to_bytes(32, "little"),
        "a key that is not reduced": (_BIG_PRIME + 9).to_bytes(32, "little"),
        "a key with the top bit set": bytes([9, *bytes(30), 0x80]),
        "our own key echoed": adverts[0].mask_keys[0],
        "a channel key as a mask key": adverts[3].channel_key,
        "a mask key for two sums": adverts[3].mask_keys[1],
    }


def _deliveries(book: Book) -> None:
    session = Session(Trust.MALICIOUS).share()
    start, cohort = book.start("shared", session.rig), session.cohort

    def refuse(name: str, parcels: Iterable[Parcel], error: str) -> None:
        book.case(f"delivery: {name}", start, session.rig.delivery(cohort, parcels), error)

    honest = session.parcels()
    first, second, *_ = honest
    refuse("of a stranger", [*honest, replace(first, sender=9)], "UnknownPeer")
    refuse("of this client itself", [replace(first, sender=0), *honest], "BadRoster")
    forged = replace(first, signature=second.signature)
    refuse("under the signature of another", [forged, *honest[1:]], "BadSignature")
    refuse("of too few clients", honest[:1], "FewContributors")
    refuse("twice of one client", [honest[0], *honest], "MalformedMessage")
    blob = b"".join(parcel.encode() for parcel in honest)
    short = m.Delivery(cohort.session, blob[1:]).encode()
    book.case("delivery: records of another length", start, short, "MalformedMessage")
    foreign = m.Delivery(bytes(32), blob).encode()
    book.case("delivery: of another session", start, foreign, "WrongSession")


# --- one sum --------------------------------------------------------------------------------------


def _queries(book: Book) -> None:
    session = _ready()
    start, cohort = book.start("ready", session.rig), session.cohort

    def refuse(name: str, error: str, frame: bytes) -> None:
        book.case(f"query: {name}", start, frame, error)

    refuse("a sum beyond the session", "TooManySums", session.query(SUMS))
    refuse("an unknown kind", "UnknownSum", session.query(kind="secret"))
    refuse("without this client", "BadRoster", session.query(roster=[1, 2, 3]))
    refuse("too few clients", "FewContributors", session.query(roster=[0, 1]))
    for name, roster in (("bits beyond the cohort", b"\x1f"), ("of another length", b"\x0f\x00")):
        frame = m.Query(cohort.session, 0, ROUND, "vector", roster, b"").encode()
        refuse(f"a roster with {name}", "MalformedMessage", frame)
    foreign = m.Query(bytes(32), 0, ROUND, "vector", b"\x0f", b"").encode()
    refuse("of another session", "WrongSession", foreign)
    _query_memories(book, session)
    absent = Session(Trust.MALICIOUS).deliver(without=[3])
    start = book.start("ready, client 3 did not deal", absent.rig)
    refuse("a client whose shares never came", "UnknownPeer", absent.query())
    again = _ready().ask(1)
    start = book.start("asked for sum 1", again.rig)
    refuse("an earlier sum", "RepeatedSum", again.query(0, kind="once"))
    refuse("the same sum", "RepeatedSum", again.query(1, kind="once"))


def _query_memories(book: Book, session: Session) -> None:
    """Refusals that rest on what the client remembers of earlier sessions."""
    content = content_digest("vector", b"query 0").hex()

    def remembered(*answers: tuple[str, int, str]) -> dict[str, Any]:
        rows = [{"group": group, "round": number, "content": text} for group, number, text in answers]
        return {"answers": rows}

    memory = remembered(("once", 0, content))
    start = book.start("ready, the query is known", session.rig, memory=memory)
    book.case("query: answered in an earlier session", start, session.query(), "RepeatedQuery")
    memory = remembered(("vector", ROUND, "00" * 32))
    start = book.start("ready, the round is known", session.rig, memory=memory)
    book.case("query: a group of an earlier session", start, session.query(), "GroupReopened")
    memory = remembered(*(("once", k, f"{k:064x}") for k in range(4)))
    start = book.start("ready, the cap is reached", session.rig, memory=memory)
    book.case("query: more sums without noise than allowed", start, session.query(), "TooManySums")


def _groups(book: Book) -> None:
    """Later sums of a group, after one that was answered and confirmed."""
    session = _ready().reveal()
    start = book.start("revealed", session.rig)
    frame = session.query(1, roster=[0, 1, 2])
    book.case("group: a smaller roster", start, frame, "GroupChanged")
    frame = session.query(1, payload=b"query 0")
    book.case("group: a repeated query", start, frame, "RepeatedQuery")
    twice = _ready().reveal().reveal(1)
    start = book.start("revealed twice", twice.rig)
    book.case("group: more sums than declared", start, twice.query(2), "TooManySums")
    closed = _ready().mask()
    for member in EVERYBODY:
        closed.rig.send(member, m.GroupClosed(closed.cohort.session, 0).encode())
    start = book.start("closed", closed.rig)
    book.case("group: reopened after it was closed", start, closed.query(1), "GroupReopened")
    later = _ready().reveal().mask(1)
    start = book.start("masked, later in a group", later.rig)
    book.case("group: fewer survivors than before", start, later.survivors(1, [0, 1, 2]), "GroupChanged")
    past = m.GroupClosed(later.cohort.session, 0).encode()
    book.case("group: closing an earlier sum", start, past, "RepeatedSum")
    beyond = m.GroupClosed(later.cohort.session, SUMS).encode()
    book.case("group: closing a sum beyond the session", start, beyond, "RepeatedSum")


def _survivors(book: Book) -> None:
    session = _ready().mask()
    start = book.start("masked", session.rig)

    def refuse(name: str, frame: bytes, error: str) -> None:
        book.case(f"survivors: {name}", start, frame, error)

    refuse("without this client", session.survivors(0, [1, 2, 3]), "BadSurvivors")
    refuse("too few", session.survivors(0, [0, 1]), "FewContributors")
    refuse("of another sum", session.survivors(1, EVERYBODY), "OutOfOrder")
    stray = m.Survivors(session.cohort.session, 0, b"\x1f").encode()
    refuse("bits beyond the cohort", stray, "MalformedMessage")
    foreign = m.Survivors(bytes(32), 0, b"\x0f").encode()
    refuse("of another session", foreign, "WrongSession")
    part = _ready()
    part.rig.send(0, part.query(0, roster=[0, 1, 2]))
    part.rig.answer(0)
    start = book.start("masked for a roster of three", part.rig)
    refuse("somebody outside the roster", part.survivors(0, EVERYBODY), "BadSurvivors")
    second = _ready(Trust.CURIOUS).reveal()
    start = book.start("revealed, unsigned", second.rig)
    refuse("a second, other set", second.survivors(0, [0, 1, 2]), "OutOfOrder")


def _confirmations(book: Book) -> None:
    session = _ready().sign()
    start, signatures = book.start("signed", session.rig), session.signatures

    def refuse(name: str, frame: bytes, error: str) -> None:
        book.case(f"confirmations: {name}", start, frame, error)

    refuse("too few", session.confirmations(0, signatures[:2]), "FewContributors")
    refuse("of another sum", session.confirmations(1, signatures), "OutOfOrder")
    swapped = [signatures[0], (1, signatures[2][1]), *signatures[2:]]
    refuse("under the signature of another", session.confirmations(0, swapped), "BadSignature")
    stranger = [*signatures, (4, signatures[0][1])]
    refuse("of a client outside the survivors", session.confirmations(0, stranger), "UnknownPeer")
    doubled = [signatures[0], signatures[0], signatures[1]]
    refuse("twice of one client", session.confirmations(0, doubled), "MalformedMessage")
    other_set = _other_survivors(session.rig, session.cohort, session.query())
    refuse("on another survivor set", session.confirmations(0, other_set), "BadSignature")


def _other_survivors(rig: Recorder, cohort: Cohort, query: bytes) -> list[tuple[int, bytes]]:
    """What clients sign who were shown another set of survivors."""
    fields = rig.question(cohort, query).confirmed_fields((0, 1, 2))
    return [(k, rig.identity(k).sign("survivors", *fields)) for k in EVERYBODY]


# --- the order of messages ------------------------------------------------------------------------


def _order(book: Book) -> None:
    """Every message in every state whose table of moves does not have it."""
    session = _ready()
    ended = _ready()
    ended.rig.send(0, m.Farewell(invitation_digest(ended.invitation)).encode())
    book.start("ended", ended.rig)
    book.start("asked", _ready().ask().rig)
    samples = sample_messages(session.cohort.session)
    for state in ("new", "advertised", "shared", "ready", "asked", "masked", "signed", "ended"):
        legal = [kind for at, kind in CLIENT_MOVES[Trust.MALICIOUS] if at.value == state]
        for sample in samples:
            if type(sample) not in legal:
                name = f"order: {type(sample).__name__} while {state}"
                book.case(name, state, sample.encode(), "OutOfOrder")
    renamed = m.Farewell(session.cohort.session).encode()
    book.case("farewell: not under the invitation", "ready", renamed, "WrongSession")
    unsigned = _ready(Trust.CURIOUS).mask()
    start = book.start("masked, unsigned", unsigned.rig)
    frame = m.Confirmations(unsigned.cohort.session, 0, bytes(68)).encode()
    book.case("order: Confirmations in an unsigned session", start, frame, "OutOfOrder")
