"""The total of a sum, from masked inputs and revealed shares alone (section 9, step 6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tests.second_implementation import crypto, lies
from tests.second_implementation.crypto import SHARE, TAG
from tests.second_implementation.encoding import Message, chunks, places_of
from tests.second_implementation.graph import Cohort
from tests.second_implementation.noise import component, decode_noisy, rotation_seed, surplus
from tests.second_implementation.records import Advert, revealed_columns
from tests.second_implementation.specs import Residues, Spec, decode

Deposits = Mapping[int, Mapping[int, list[bytes]]]


@dataclass(frozen=True)
class Revealed:
    """What a holder revealed of one row: shares by column, and the hashes of the others in order."""

    shares: dict[int, bytes]
    hidden: list[bytes]

    def hashes(self, session: bytes, dealer: int, holder: int, k: int, columns: int) -> list[bytes]:
        """The hashes of all columns of the row."""
        hidden = iter(self.hidden)
        return [
            crypto.share_hash(session, dealer, holder, k, column, self.shares[column])
            if column in self.shares
            else next(hidden)
            for column in range(columns)
        ]


@dataclass(frozen=True)
class Total:
    """The result of a sum."""

    contributors: int
    invited: int
    residues: Residues
    values: dict[str, list[float]]


@dataclass
class Sum:
    """A sum in progress on the server."""

    k: int
    kind: str
    spec: Spec
    group: tuple[str, int]
    roster: list[int]
    later: bool
    query: bytes
    context: bytes
    inputs: dict[int, tuple[Residues, int]] = field(default_factory=dict)
    words: dict[int, dict[int, int]] = field(default_factory=dict)
    messages: dict[tuple[int, str], Message] = field(default_factory=dict)
    reveals: dict[int, dict[int, Revealed]] = field(default_factory=dict)

    @property
    def survivors(self) -> list[int]:
        """The clients whose masked input arrived."""
        return sorted(self.inputs)

    @property
    def surplus(self) -> list[int]:
        """The components of noise to remove."""
        return surplus(self.spec, len(self.roster), len(self.inputs))

    def read_inputs(self, answers: Mapping[int, Message], cohort: Cohort) -> None:
        """Take the masked inputs apart."""
        for client, message in answers.items():
            self.messages[client, message.name] = message
            self.inputs[client] = self.spec.unpack(message.data(1))
            peers = [i for i in cohort.neighbours(client) if i in self.roster]
            words = [int.from_bytes(word, "little") for word in chunks(message.data(2), 8)]
            self.words[client] = dict(zip(peers, words, strict=True))


def read_reveal(current: Sum, members: list[int], columns: int, message: Message) -> dict[int, Revealed]:
    """The rows in a `Reveal` by dealer; `members` is the sender's neighbourhood."""
    shares, hidden = chunks(message.data(2), SHARE), chunks(message.data(3), TAG)
    rows = {}
    for place in places_of(message.data(1), len(members)):
        dealer = members[place]
        shown = revealed_columns(dealer in current.inputs, current.surplus)
        rest = columns - len(shown)
        rows[dealer] = Revealed(dict(zip(shown, shares, strict=False)), hidden[:rest])
        shares, hidden = shares[len(shown) :], hidden[rest:]
    assert not shares
    assert not hidden
    return rows


class Failed(Exception):
    """A sum without a total, and the lies that the server knows because of it."""

    def __init__(self, reason: str, found: list[lies.Conviction], short: Collection[int] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.found = found
        self.short = short

    def convictions(self, liars: int, lost: Mapping[int, Collection[int]]) -> list[lies.Conviction]:
        """Those known, or those that settle the disputes of reporters with dealers that lack shares."""
        if not self.short:
            return self.found
        reports = {holder: set(dealers) & set(self.short) for holder, dealers in lost.items()}
        return lies.settle(lies.report_disputes(reports), liars)


class _Unmasking:
    """The steps of one reconstruction."""

    def __init__(
        self, current: Sum, cohort: Cohort, adverts: Mapping[int, Advert], deposits: Deposits, session: bytes
    ) -> None:
        self.sum = current
        self.cohort = cohort
        self.adverts = adverts
        self.deposits = deposits
        self.session = session
        self.hybrid = any(advert.kem for advert in adverts.values())
        self.residues = current.spec.zero()
        self.count = 0
        self.secrets: dict[tuple[int, int], bytes] = {}
        self.self_words: dict[int, int] = {}
        self.pair_words: dict[tuple[int, int], int] = {}

    def holders(self, dealer: int) -> dict[int, Revealed]:
        """What the first t holders revealed of a dealer's row; nothing if there are fewer."""
        found = {holder: rows[dealer] for holder, rows in sorted(self.sum.reveals.items()) if dealer in rows}
        return dict(list(found.items())[: self.cohort.t]) if len(found) >= self.cohort.t else {}

    def recover_all(self) -> None:
        """The secrets of the roster, checked against the adverts."""
        short = [dealer for dealer in self.sum.roster if not self.holders(dealer)]
        if short:
            raise Failed("Disputed", [], short)
        found = []
        for dealer in self.sum.roster:
            for column in revealed_columns(dealer in self.sum.inputs, self.sum.surplus):
                secret = self.recover(dealer, column)
                if secret is None:
                    found.append(
                        lies.Conviction(dealer, "false dealing", tuple(self.holders(dealer)), column)
                    )
                else:
                    self.secrets[dealer, column] = secret
        if found:
            raise Failed("Unrecoverable", found)

    def recover(self, dealer: int, column: int) -> bytes | None:
        """The secret of a dealer in one column, or nothing if it is not that of the advert."""
        members = self.cohort.neighbourhood(dealer)
        points = {members.index(holder): row.shares[column] for holder, row in self.holders(dealer).items()}
        secret = crypto.recover(points)
        fits = secret is not None and fits_advert(self.adverts[dealer], self.sum.k, column, secret)
        return secret if fits else None

    def add(self, seed: bytes, sign: int) -> int:
        """Add a mask to the total, or subtract it; its word."""
        mask, word = self.sum.spec.mask(seed)
        self.sum.spec.add(self.residues, mask, sign)
        self.count = (self.count + sign * word) % (1 << 64)
        return word

    def remove_self_masks(self) -> None:
        """Subtract the self masks of the survivors, and their surplus noise."""
        for client, (residues, count) in self.sum.inputs.items():
            self.sum.spec.add(self.residues, residues, 1)
            self.count = (self.count + count) % (1 << 64)
            seed = crypto.self_seed(self.session, self.sum.context, client, self.secrets[client, 0])
            self.self_words[client] = self.add(seed, -1)
            for number in self.sum.surplus:
                shared = self.secrets[client, 1 + number]
                stream = crypto.noise_stream(self.session, self.sum.context, client, number, shared)
                noise = component(self.sum.spec, len(self.sum.roster), number, stream)
                self.sum.spec.add(self.residues, noise, -1)

    def remove_pair_masks(self) -> None:
        """Undo the pair masks between survivors and their neighbours in the rest of the roster."""
        found = []
        for missing in self.sum.roster:
            for peer in self.cohort.neighbours(missing):
                if missing not in self.sum.inputs and peer in self.sum.inputs:
                    dealt = self.secrets[missing, 1]
                    secret = self.pair_secret(missing, peer, dealt)
                    if secret is None:
                        found.append(lies.Conviction(missing, "false deposit", (peer,), 1, dealt))
                        continue
                    # The survivor added the mask if its id is the higher one.
                    sign = -1 if missing < peer else 1
                    seed = self.pair_seed(missing, peer, dealt, secret)
                    self.pair_words[peer, missing] = self.add(seed, sign)
        if found:
            raise Failed("Unrecoverable", found)

    def pair_secret(self, missing: int, peer: int, dealt: bytes) -> bytes | None:
        """The pair secret that a client that dropped out deposited, or nothing if it does not fit its tag."""
        if not self.hybrid:
            return b""
        record = self.deposits[missing][peer][self.sum.k]
        return opened(self.session, dealt, missing, peer, self.sum.k, record)

    def pair_seed(self, missing: int, peer: int, dealt: bytes, secret: bytes) -> bytes:
        """The seed of a pair mask, from the reconstructed secret of the client that dropped out."""
        own = crypto.mask_secret(dealt, self.hybrid)
        agreed = crypto.agree(own, self.adverts[peer].mask_keys[self.sum.k])
        return crypto.pair_seed(self.session, self.sum.context, missing, peer, agreed, secret)

    def check_count(self) -> None:
        """The hidden count, and who made it wrong (13.4)."""
        if self.count == len(self.sum.inputs):
            return
        found = [
            lies.Conviction(client, "false count", secret=self.secrets[client, 0])
            for client, (_, count) in self.sum.inputs.items()
            if bare_count(client, count, self.self_words[client], self.sum.words[client]) != 1
        ]
        found += [
            lies.Conviction(client, "false word", (missing,), 1, self.secrets[missing, 1])
            for (client, missing), word in self.pair_words.items()
            if self.sum.words[client][missing] != word
        ]
        raise Failed("CorruptTotal", found)


def bare_count(client: int, count: int, self_word: int, words: Mapping[int, int]) -> int:
    """The masked count of a client without its self mask and its pair words; it must be 1 (5.4)."""
    pairs = sum(word if peer < client else -word for peer, word in words.items())
    return (count - self_word - pairs) % (1 << 64)


def opened(session: bytes, dealt: bytes, owner: int, peer: int, k: int, record: bytes) -> bytes | None:
    """The pair secret in a deposit, or nothing if it does not fit its tag (4.7)."""
    secret = crypto.pad_deposit(session, dealt, owner, peer, k, record[:32])
    return secret if crypto.pair_secret_tag(session, owner, peer, k, secret) == record[32:] else None


def fits_advert(advert: Advert, k: int, column: int, secret: bytes) -> bool:
    """Whether a reconstructed secret is the one of the advert."""
    if column == 0:
        return crypto.self_mask_commitment(advert.id, k, secret) == advert.self_commitments[k]
    if column == 1:
        return crypto.public_key(crypto.mask_secret(secret, bool(advert.kem))) == advert.mask_keys[k]
    number = column - 1
    return crypto.noise_commitment(advert.id, k, number, secret) == advert.seed_commitments[k][number - 1]


def unmask(
    current: Sum, cohort: Cohort, adverts: Mapping[int, Advert], deposits: Deposits, session: bytes
) -> Total:
    """The total, or `Failed`."""
    steps = _Unmasking(current, cohort, adverts, deposits, session)
    steps.recover_all()
    steps.remove_self_masks()
    steps.remove_pair_masks()
    steps.check_count()
    spec, values = current.spec, {}
    seed = rotation_seed(session, current.k, spec)
    for index, part in enumerate(spec.parts):
        residues = steps.residues[part.name]
        if part.noisy:
            values[part.name] = decode_noisy(part, index, seed, len(current.roster), residues)
        else:
            values[part.name] = decode(part, cohort.n, residues)
    return Total(len(current.inputs), len(current.roster), steps.residues, values)
