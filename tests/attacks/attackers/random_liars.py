"""Clients that tell any of many lies, in whichever sums they like. They sign what they say.

`RandomLiar.told` records which lies were told: one without a target in the sum changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from numpy.typing import ArrayLike

from secagg import messages as m
from secagg import shamir
from secagg.bitmap import unpack_positions
from secagg.cohort_members import pack_neighbours
from secagg.events import Answer, ClientStep
from secagg.hybrid_keys import DEPOSIT_BYTES, PAIR_SECRET_BYTES
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, public_key
from secagg.message_records import Advert
from secagg.session_secrets import Vault
from secagg.shamir import SHARE_BYTES
from secagg.share_tags import TAG_BYTES, revealed_columns
from secagg.sum_spec import COUNT_BITS, COUNT_BYTES
from tests.attacks.attackers.liars import FalseReporter

_LIMIT: Final = 1 << 30


@dataclass(frozen=True)
class Lie:
    """A lie about `targets` (ids) in `sums`. `number` says how it is told, where there are several ways."""

    kind: str
    targets: frozenset[int]
    sums: frozenset[int]
    number: int


class RandomLiar(FalseReporter):
    """A client that tells `lies`. `heard` are adverts of an earlier session, which it may repeat. `shifts`
    has, by sum, what it added to the first element of its own masked input."""

    lies: tuple[Lie, ...] = ()
    heard: tuple[Advert, ...] = ()

    def prepare(self, lies: tuple[Lie, ...], heard: tuple[Advert, ...]) -> None:
        self.lies, self.heard = lies, heard
        self.told: set[Lie] = set()
        self.shifts: dict[int, int] = {}
        denied = (FALSE_REPORT, HIDDEN_REPORT)  # it says, or acts as if, these envelopes did not open
        self.accused = {k for lie in lies if lie.kind in denied for k in lie.targets}

    # --- set-up ---

    def _make_advert(self) -> Advert:
        self._vault = _LyingVault.over(self._vault, self)
        advert = super()._make_advert()
        for lie in self.lies:
            if lie.kind in ADVERTS:
                self.told.add(lie)
                advert = ADVERTS[lie.kind](self, lie, advert)
        return advert

    def signed(self, advert: Advert, context: bytes = b"") -> Advert:
        unsigned = replace(advert, signature=b"")
        return replace(unsigned, signature=self._sign("advert", context or self._context, unsigned.body))

    def _on_delivery(self, message: m.Delivery, frame: bytes) -> ClientStep:
        step = super()._on_delivery(message, frame)
        around = {self._cohort.ids[position] for position in self._cohort.neighbourhood}
        if not around.isdisjoint(self.accused):
            self.told |= {lie for lie in self.lies if lie.kind == FALSE_REPORT}
        absent = [position for position in self.around if position not in self._sharers]
        for lie in self.lies:
            if lie.kind == ABSENT_REPORT and absent:
                self.told.add(lie)
                frames = [each for each in step.frames if m.message_type(each, sender=0) is not m.Lost]
                report = m.Lost(self._context, pack_neighbours(self._cohort, absent)).encode()
                step = ClientStep((report, *frames), step.events)
        return step

    # --- every message ---

    def receive(self, frame: bytes, *, now: int | None = None) -> ClientStep:
        step = super().receive(frame, now=now)
        if self._question is not None:
            self.question = self._question
        frames = [changed for each in step.frames for changed in self._lie_in(each)]
        if isinstance(m.decode(frame, sender="server", limit=_LIMIT), m.Query):
            frames += self._late_reports()
        return ClientStep(tuple(frames), step.events)

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        answer = super().answer(sum_index, values)
        (frame,) = self._lie_in(answer.frame)
        return Answer(frame, answer.clipped)

    def _late_reports(self) -> list[bytes]:
        frames = []
        for lie in self.lies:
            if lie.kind == LATE_REPORT and self.question.sum_index in lie.sums:
                dealers = [at for at in self.around if self._cohort.ids[at] in lie.targets]
                frames += [m.Lost(self._context, pack_neighbours(self._cohort, dealers)).encode()]
                self.told.add(lie)
        return frames

    def _lie_in(self, frame: bytes) -> list[bytes]:
        """The frames to send instead of `frame`. Signatures are made anew, and then possibly spoiled."""
        message = m.decode(frame, sender=self.member, limit=_LIMIT)
        lies = [lie for lie in self.lies if getattr(message, "sum_index", None) in (None, *lie.sums)]
        for lie in lies:
            kind, change = MESSAGES.get(lie.kind, (None, None))
            if kind is type(message) and change is not None:
                changed = change(self, lie, message)
                self.told |= {lie} if changed != message else set()
                if changed is None:
                    return []
                message = changed
        message = self._resigned(message)
        for lie in lies:
            if SIGNATURES.get(lie.kind) is type(message):
                self.told.add(lie)
                message = _with_bad_signature(message)
            if lie.kind == GARBAGE and isinstance(message, GARBLED[lie.number % len(GARBLED)]):
                self.told.add(lie)
                return [message.encode()[: 40 - lie.number % 40]]
        return [message.encode()]

    def _resigned(self, message: m.Message) -> m.Message:
        match message:
            case m.Shares():
                signature = self._sign("share tags", self._cohort.session, message.tags)
                return replace(message, tags_signature=signature)
            case m.Deposit():
                signature = self._sign("deposit", self._context, self._receipt, message.deposits)
                return replace(message, signature=signature)
            case m.MaskedInput():
                fields = self.question.input_fields(self._receipt, message.data, message.words)
                return replace(message, signature=self._sign("masked input", *fields))
            case m.Reveal():
                revealed = (message.dealers, message.shares, message.hidden)
                fields = self.question.reveal_fields(self._survivors, self._receipt, *revealed)
                return replace(message, signature=self._sign("reveal", *fields))
        return message

    @property
    def around(self) -> list[int]:
        """The positions of its neighbours."""
        return [each for each in self._cohort.neighbourhood if each != self._position]

    def is_target(self, lie: Lie, position: int) -> bool:
        return self._cohort.ids[position] in lie.targets


def _with_bad_signature(message: Any) -> Any:
    name = "tags_signature" if isinstance(message, m.Shares) else "signature"
    return replace(message, **{name: bytes(SIGNATURE_BYTES)})


# --- lies in adverts -------------------------------------------------------------------------------


def _low_order_key(liar: RandomLiar, lie: Lie, advert: Advert) -> Advert:
    keys = (bytes(KEY_BYTES), *advert.mask_keys[1:])
    if lie.number % 2:
        return liar.signed(replace(advert, channel_key=bytes(KEY_BYTES)))
    return liar.signed(replace(advert, mask_keys=keys))


def _same_keys(liar: RandomLiar, lie: Lie, advert: Advert) -> Advert:
    return liar.signed(replace(advert, mask_keys=(advert.channel_key, *advert.mask_keys[1:])))


def _bad_kem_key(liar: RandomLiar, lie: Lie, advert: Advert) -> Advert:
    return liar.signed(replace(advert, kem_key=b"\xff" * len(advert.kem_key)))


def _other_id(liar: RandomLiar, lie: Lie, advert: Advert) -> Advert:
    return liar.signed(replace(advert, member=min(lie.targets)))


def _replayed(liar: RandomLiar, lie: Lie, advert: Advert) -> Advert:
    """An advert of an earlier session, its own or another's in its own name. If it has heard of none, a fresh
    one, signed for another invitation."""
    if liar.heard:
        return replace(liar.heard[lie.number % len(liar.heard)], member=liar.member)
    return liar.signed(advert, context=bytes(len(liar._context)))


def _false_commitment(liar: RandomLiar, lie: Lie, advert: Advert) -> Advert:
    """To the self-mask secrets of the sums in question, or to one noise seed of any sum."""
    made = list(advert.commitments)
    sums = len(advert.mask_keys)
    places = [k for k in lie.sums if k < sums] if lie.number % 2 else [lie.number % len(made)]
    for place in places:
        made[place] = _flipped(made[place], lie.number % len(made[place]))
    return liar.signed(replace(advert, commitments=tuple(made)))


def _other_mask_key(liar: RandomLiar, lie: Lie, advert: Advert) -> Advert:
    keys = list(advert.mask_keys)
    for k in lie.sums:
        keys[k] = public_key(liar._hooks.random(KEY_BYTES))
    return liar.signed(replace(advert, mask_keys=tuple(keys)))


# --- lies in dealt shares --------------------------------------------------------------------------


class _LyingVault(Vault):
    """A vault that deals what the lies of its owner make of its shares, with tags that fit."""

    liar: RandomLiar

    @classmethod
    def over(cls, vault: Vault, liar: RandomLiar) -> _LyingVault:
        """The same vault, secrets and all, but for what it deals."""
        lying = cls.__new__(cls)
        lying.__dict__ = vault.__dict__
        lying.liar = liar
        return lying

    def deal(self, *, threshold: int, holders: int) -> list[bytes]:
        texts = super().deal(threshold=threshold, holders=holders)
        for lie in self.liar.lies:
            if lie.kind in DEALINGS:
                self.liar.told.add(lie)
                for k in lie.sums:
                    at = k * self._row_bytes + lie.number % (self._row_bytes // SHARE_BYTES) * SHARE_BYTES
                    for place, share in DEALINGS[lie.kind](self, lie, threshold, texts, at).items():
                        texts[place] = texts[place][:at] + share + texts[place][at + SHARE_BYTES :]
        return texts

    def places(self, lie: Lie) -> list[int]:
        around = self.liar._cohort.neighbourhood
        return [place for place, position in enumerate(around) if self.liar.is_target(lie, position)]


def _other_secret(
    vault: _LyingVault, lie: Lie, threshold: int, texts: list[bytes], at: int
) -> dict[int, bytes]:
    """Proper shares of an improper secret."""
    decoy = vault._random(shamir.SECRET_BYTES)
    shares = shamir.deal(decoy, threshold=threshold, holders=len(texts), random=vault._random)
    return {place: shamir.shares_to_bytes([share]) for place, share in enumerate(shares)}


def _wrong_dealing(
    vault: _LyingVault, lie: Lie, threshold: int, texts: list[bytes], at: int
) -> dict[int, bytes]:
    """Shares of some holders that are off by one, and lie on no polynomial with the others."""
    old = {place: texts[place][at : at + SHARE_BYTES] for place in vault.places(lie)}
    return {place: _off_by_one(share) for place, share in old.items()}


def _out_of_field(
    vault: _LyingVault, lie: Lie, threshold: int, texts: list[bytes], at: int
) -> dict[int, bytes]:
    return dict.fromkeys(vault.places(lie), b"\xff" * SHARE_BYTES)


def _off_by_one(shares: bytes) -> bytes:
    starts = range(0, len(shares), SHARE_BYTES)
    values = [int.from_bytes(shares[at : at + SHARE_BYTES], "big") for at in starts]
    return shamir.shares_to_bytes([(value + 1) % shamir.PRIME for value in values])


# --- lies in later messages of set-up --------------------------------------------------------------


def _unreadable(liar: RandomLiar, lie: Lie, message: m.Shares) -> m.Shares:
    size, blob = liar._form.envelope_bytes, bytearray(message.envelopes)
    for place, position in enumerate(liar.around):
        if liar.is_target(lie, position):
            blob[place * size + lie.number % size] ^= 1
    return replace(message, envelopes=bytes(blob))


def _misfit_tags(liar: RandomLiar, lie: Lie, message: m.Shares) -> m.Shares:
    size, blob = liar._form.tags_bytes, bytearray(message.tags)
    for place, position in enumerate(liar._cohort.neighbourhood):
        if liar.is_target(lie, position):
            blob[place * size + lie.number % size] ^= 1
    return replace(message, tags=bytes(blob))


def _false_deposit(liar: RandomLiar, lie: Lie, message: m.Deposit) -> m.Deposit:
    return _changed_deposit(liar, lie, message, 0)


def _false_deposit_tag(liar: RandomLiar, lie: Lie, message: m.Deposit) -> m.Deposit:
    """Two liars that lie about each other agree on the tag."""
    return _changed_deposit(liar, lie, message, PAIR_SECRET_BYTES)


def _changed_deposit(liar: RandomLiar, lie: Lie, message: m.Deposit, at: int) -> m.Deposit:
    blob = bytearray(message.deposits)
    peers = [each for each in sorted(liar._sharers) if each != liar._position]
    for place, position in enumerate(peers):
        if liar.is_target(lie, position):
            for k in lie.sums:
                blob[place * liar._form.deposit_bytes + k * DEPOSIT_BYTES + at] ^= 1
    return replace(message, deposits=bytes(blob))


def _short_deposit(liar: RandomLiar, lie: Lie, message: m.Deposit) -> m.Deposit:
    return replace(message, deposits=message.deposits[: -liar._form.deposit_bytes] or b"\x00")


# --- lies in a sum ---------------------------------------------------------------------------------


def _added(number: bytes, more: int) -> bytes:
    changed = (int.from_bytes(number, "little") + more) % (1 << COUNT_BITS)
    return changed.to_bytes(COUNT_BYTES, "little")


def _false_count(liar: RandomLiar, lie: Lie, message: m.MaskedInput) -> m.MaskedInput:
    """Two of these may make up for each other: then the total is right, and neither shows."""
    more = (1, -1, 4, 1 << 63)[lie.number % 4]
    return replace(message, data=_recounted(message.data, more))


def _recounted(data: bytes, more: int) -> bytes:
    return data[:-COUNT_BYTES] + _added(data[-COUNT_BYTES:], more)


def _false_words(liar: RandomLiar, lie: Lie, message: m.MaskedInput) -> m.MaskedInput:
    """By what it says, its own count is 1. Two liars may agree on the word of their pair."""
    more, data = 1 + lie.number % 2, message.data
    words, signs = _changed_words(liar, lie, message.words, more)
    return replace(message, data=_recounted(data, more * signs), words=words)


def _misfit_words(liar: RandomLiar, lie: Lie, message: m.MaskedInput) -> m.MaskedInput:
    """Words that do not fit its count."""
    return replace(message, words=_changed_words(liar, lie, message.words, 1)[0])


def _changed_words(liar: RandomLiar, lie: Lie, words: bytes, more: int) -> tuple[bytes, int]:
    """The words with `more` added to those of the targets, and the sum of the signs of these masks."""
    signs = 0
    asked = [position for position in liar.around if position in liar.question.roster]
    for at, position in enumerate(asked):
        if liar.is_target(lie, position):
            start, stop = at * COUNT_BYTES, (at + 1) * COUNT_BYTES
            words = words[:start] + _added(words[start:stop], more) + words[stop:]
            signs += 1 if position < liar._position else -1
    return words, signs


def _shifted_input(liar: RandomLiar, lie: Lie, message: m.MaskedInput) -> m.MaskedInput:
    """Another input than it encoded. Nobody can tell, and nobody need: it is its own."""
    encoding = liar.question.encoding
    residues = encoding.unpack(message.data)
    shift = 1 + lie.number % 1000
    liar.shifts[message.sum_index] = liar.shifts.get(message.sum_index, 0) + shift
    residues[0][:1] += residues[0].dtype.type(shift)
    return replace(message, data=encoding.pack(residues))


def _short_input(liar: RandomLiar, lie: Lie, message: m.MaskedInput) -> m.MaskedInput:
    if lie.number % 2:
        return replace(message, words=message.words[COUNT_BYTES:] or b"\x00")
    return replace(message, data=message.data[1:])


def _other_survivors(liar: RandomLiar, lie: Lie, message: m.Confirmation) -> m.Confirmation:
    others = sorted(liar._survivors)
    others.remove(others[lie.number % len(others)])
    fields = liar.question.confirmed_fields(others)
    return replace(message, signature=liar._sign("survivors", *fields))


# --- lies in revealed shares -----------------------------------------------------------------------

Row: TypeAlias = tuple[int, bytes, bytes]  # dealer, revealed shares, hashes of the others


def _rows(liar: RandomLiar, message: m.Reveal) -> list[Row]:
    """What the liar reveals, by dealer."""
    around = liar._cohort.neighbourhood
    columns = revealed_columns(liar.question.surplus(len(liar._survivors)))
    places = unpack_positions(message.dealers, len(around), sender=liar.member)
    rows, at, hidden_at = [], 0, 0
    for dealer in (around[place] for place in places):
        count = len(columns[dealer in liar._survivors])
        stop = at + count * SHARE_BYTES
        hidden_stop = hidden_at + (2 + liar._form.seeds - count) * TAG_BYTES
        rows.append((dealer, message.shares[at:stop], message.hidden[hidden_at:hidden_stop]))
        at, hidden_at = stop, hidden_stop
    return rows


def _joined(liar: RandomLiar, message: m.Reveal, rows: list[Row]) -> m.Reveal:
    dealers = pack_neighbours(liar._cohort, [dealer for dealer, _, _ in rows])
    shares, hidden = b"".join(row[1] for row in rows), b"".join(row[2] for row in rows)
    return replace(message, dealers=dealers, shares=shares, hidden=hidden)


def _wrong_shares(liar: RandomLiar, lie: Lie, message: m.Reveal) -> m.Reveal:
    rows = [
        (dealer, _off_by_one(shares) if liar.is_target(lie, dealer) else shares, hidden)
        for dealer, shares, hidden in _rows(liar, message)
    ]
    return _joined(liar, message, rows)


def _wrong_hashes(liar: RandomLiar, lie: Lie, message: m.Reveal) -> m.Reveal:
    rows = [
        (
            dealer,
            shares,
            _flipped(hidden, lie.number % len(hidden)) if liar.is_target(lie, dealer) else hidden,
        )
        for dealer, shares, hidden in _rows(liar, message)
    ]
    return _joined(liar, message, rows)


def _withheld_shares(liar: RandomLiar, lie: Lie, message: m.Reveal) -> m.Reveal:
    rows = [row for row in _rows(liar, message) if not liar.is_target(lie, row[0])]
    return _joined(liar, message, rows) if rows else message


def _revealed_out_of_field(liar: RandomLiar, lie: Lie, message: m.Reveal) -> m.Reveal:
    return replace(message, shares=b"\xff" * SHARE_BYTES + message.shares[SHARE_BYTES:])


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# --- all kinds -------------------------------------------------------------------------------------

FALSE_REPORT: Final = "false report"
HIDDEN_REPORT: Final = "hidden report"
ABSENT_REPORT: Final = "absent dealers reported"  # who have not dealt anything that could be lost
LATE_REPORT: Final = "late report"
GARBAGE: Final = "garbage"

ADVERTS: Final[dict[str, Callable[[RandomLiar, Lie, Advert], Advert]]] = {
    "low-order key": _low_order_key,
    "same keys": _same_keys,
    "bad KEM key": _bad_kem_key,
    "another's id": _other_id,
    "replayed advert": _replayed,
    "false commitment": _false_commitment,
    "other mask key": _other_mask_key,
}
DEALINGS: Final[dict[str, Callable[[_LyingVault, Lie, int, list[bytes], int], dict[int, bytes]]]] = {
    "other secret dealt": _other_secret,
    "wrong shares dealt": _wrong_dealing,
    "no shares dealt": _out_of_field,
}
# What each makes of a message; None: it does not send it.
MESSAGES: Final[dict[str, tuple[type[m.Message], Callable[[RandomLiar, Lie, Any], m.Message | None]]]] = {
    "unreadable shares": (m.Shares, _unreadable),
    "misfit tags": (m.Shares, _misfit_tags),
    HIDDEN_REPORT: (m.Lost, lambda *_: None),
    "false deposit": (m.Deposit, _false_deposit),
    "false deposit tag": (m.Deposit, _false_deposit_tag),
    "short deposit": (m.Deposit, _short_deposit),
    "false count": (m.MaskedInput, _false_count),
    "false words": (m.MaskedInput, _false_words),
    "misfit words": (m.MaskedInput, _misfit_words),
    "shifted input": (m.MaskedInput, _shifted_input),
    "short input": (m.MaskedInput, _short_input),
    "other survivors": (m.Confirmation, _other_survivors),
    "wrong shares": (m.Reveal, _wrong_shares),
    "wrong hashes": (m.Reveal, _wrong_hashes),
    "withheld shares": (m.Reveal, _withheld_shares),
    "no shares": (m.Reveal, _revealed_out_of_field),
}
SIGNATURES: Final[dict[str, type[m.Message]]] = {
    "unsigned tags": m.Shares,
    "unsigned deposit": m.Deposit,
    "unsigned input": m.MaskedInput,
    "unsigned confirmation": m.Confirmation,
    "unsigned reveal": m.Reveal,
}
GARBLED: Final = (m.Advertisement, m.Shares, m.Deposit, m.MaskedInput, m.Confirmation, m.Reveal)
REPORTS: Final = (FALSE_REPORT, ABSENT_REPORT, LATE_REPORT)
KINDS: Final = (*ADVERTS, *DEALINGS, *REPORTS, *MESSAGES, *SIGNATURES, GARBAGE)
# What no server takes, whoever sends it: a form or a signature that is wrong.
PLAIN: Final = {
    *SIGNATURES,
    *("low-order key", "same keys", "bad KEM key", "another's id", "short deposit", "short input"),
    *("other survivors", "withheld shares", "no shares", LATE_REPORT, GARBAGE),
}
