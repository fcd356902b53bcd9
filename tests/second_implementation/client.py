"""A client: the frames that it sends, from its secrets and the frames that it receives (8, 9, 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

from tests.second_implementation import crypto
from tests.second_implementation.crypto import SHARE, Signer, tagged
from tests.second_implementation.encoding import (
    bitmap,
    chunks,
    frame,
    in_bitmap,
    parse,
    u32,
)
from tests.second_implementation.noise import largest_seeds, surplus
from tests.second_implementation.records import (
    KEM_CIPHERTEXT,
    Layout,
    Network,
    complete_network,
    layout_of,
    place_tags,
    revealed_columns,
    ring_network,
)
from tests.second_implementation.specs import Residues, Spec, Table

# Rows of shares: for each sum, one share per column.
Rows = list[list[bytes]]


@dataclass(frozen=True)
class Secrets:
    """The random choices of one client in one session."""

    channel: bytes
    # Per sum: the secret in column 1 of a row, the self-mask secret, and R seeds.
    dealt: list[bytes]
    self_masks: list[bytes]
    seeds: list[list[bytes]]
    # By place in the neighbourhood: the rows that this client deals.
    rows: list[Rows]
    # With hybrid keys: the seed of the KEM key, and secret and ciphertext by receiver.
    kem_seed: bytes = b""
    encapsulations: Mapping[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def in_column(self, k: int, column: int) -> bytes:
        """The secret that one column of a row of sum k shares."""
        return [self.self_masks[k], self.dealt[k], *self.seeds[k]][column]


@dataclass
class CurrentSum:
    """The sum that a client was asked last."""

    k: int
    group: tuple[str, int]
    query: bytes
    spec: Spec
    roster: bytes
    context: bytes
    survivors: bytes = b""

    @property
    def removed(self) -> list[int]:
        """The surplus components, from the sizes of roster and survivors."""
        roster, survivors = (
            int.from_bytes(clients, "big").bit_count() for clients in (self.roster, self.survivors)
        )
        return surplus(self.spec, roster, survivors)

    def fields(self, session: bytes) -> list[bytes]:
        """The fields that all signatures about a sum begin with (4.5)."""
        return [session, u32(self.k), self.query, self.spec.digest, self.roster]


class Client:
    """An honest client of one session. Each method takes a frame and returns the frames that answer it."""

    network: Network
    layout: Layout
    sum: CurrentSum

    def __init__(
        self, client: int, secrets: Secrets, table: Table, signer: Signer, keys: Mapping[int, bytes]
    ) -> None:
        self.id = client
        self.secrets = secrets
        self.table = table
        self.sign = signer
        self.keys = keys
        self.invitation = b""
        self.context = b""
        self.tags = b""
        # What this client holds, by dealer in order of position: tags digests and rows of shares.
        self.digests: dict[int, bytes] = {}
        self.held: dict[int, Rows] = {}
        # With hybrid keys, the pair secrets of all sums by neighbour.
        self.pair_secrets: dict[int, list[bytes]] = {}
        # Groups of a round whose last answer was not confirmed (10.1).
        self.unconfirmed: set[tuple[str, int]] = set()

    # --- Set-up (8)

    def invited(self, data: bytes) -> list[bytes]:
        """`Invitation`: answer with the advert."""
        message = parse(data)
        self.invitation = data
        self.layout = layout_of(
            message.text(0), message.text(1), message.number(2), largest_seeds(self.table)
        )
        self.context = tagged("invitation", data)
        return [frame("Advertisement", self.context, self._advert())]

    def _advert(self) -> bytes:
        s, sums = self.secrets, range(self.layout.sums)
        body = u32(self.id) + crypto.public_key(s.channel)
        if self.layout.hybrid:
            body += MLKEM768PrivateKey.from_seed_bytes(s.kem_seed).public_key().public_bytes_raw()
        body += b"".join(crypto.public_key(self._mask_secret(k)) for k in sums)
        body += b"".join(crypto.self_mask_commitment(self.id, k, s.self_masks[k]) for k in sums)
        for k in sums:
            for number, seed in enumerate(s.seeds[k], start=1):
                body += crypto.noise_commitment(self.id, k, number, seed)
        return body + self.sign("advert", [self.context, body])

    def _mask_secret(self, k: int) -> bytes:
        return crypto.mask_secret(self.secrets.dealt[k], self.layout.hybrid)

    def key_list(self, data: bytes) -> list[bytes]:
        """`KeyList`: answer with shares on the complete graph."""
        message = parse(data)
        self.network = complete_network(
            self.invitation, data, message.number(0), message.data(1), self.layout
        )
        return [self._shares()]

    def neighbours(self, data: bytes) -> list[bytes]:
        """`Neighbours`: answer with shares on a ring."""
        m = parse(data)
        self.network = ring_network(
            self.invitation, m.number(0), m.number(1), m.data(2), m.data(3), m.data(4), self.layout
        )
        return [self._shares()]

    def _shares(self) -> bytes:
        self.context = session = self.network.session
        self._check_dealing()
        envelopes = tags = b""
        for place, holder in enumerate(self.network.ids):
            rows = self.secrets.rows[place]
            tags += b"".join(
                crypto.row_tag(crypto.row_hashes(session, self.id, holder, k, row))
                for k, row in enumerate(rows)
            )
            if holder == self.id:
                self.held[holder] = rows
            else:
                envelopes += self._envelope(holder, b"".join(share for row in rows for share in row))
        self.tags = tags
        signature = self.sign("key list", [session])
        return frame("Shares", session, envelopes, signature, tags, self.sign("share tags", [session, tags]))

    def _envelope(self, holder: int, plaintext: bytes) -> bytes:
        kem = self.secrets.encapsulations[holder] if self.layout.hybrid else (b"", b"")
        return crypto.seal(self.network.session, self._channel(holder), self.id, holder, kem, plaintext)

    def _check_dealing(self) -> None:
        """The listed shares are those of the listed secrets (4.4)."""
        rows = self.secrets.rows
        assert len(rows) == len(self.network.ids)
        for k in range(self.layout.sums):
            for column in range(self.layout.columns):
                shares = [rows[place][k][column] for place in range(len(rows))]
                assert crypto.is_dealing(self._dealt(k, column), shares, self.network.t)

    def _dealt(self, k: int, column: int) -> bytes:
        """The secret that the client shares in one column of its rows of sum k."""
        return self.secrets.in_column(k, column)

    def _channel(self, peer: int) -> bytes:
        return crypto.agree(self.secrets.channel, self.network.members[peer].channel)

    def delivered(self, data: bytes) -> list[bytes]:
        """`Delivery`: report what does not open and, with hybrid keys, make deposits."""
        session, lost = self.network.session, []
        for parcel in chunks(parse(data).data(0), self.layout.parcel):
            sender, digest = int.from_bytes(parcel[:4], "big"), parcel[4:36]
            envelope, signature = parcel[36 : 36 + self.layout.envelope], parcel[36 + self.layout.envelope :]
            if self.layout.signed:
                assert crypto.verifies(self.keys[sender], "key list", [session], signature)
            rows = self._open(sender, envelope)
            if rows is None or self._digest(sender, rows) != digest:
                lost.append(sender)
            else:
                self.held[sender], self.digests[sender] = rows, digest
        place = self.network.ids.index(self.id)
        self.digests[self.id] = crypto.tags_digest(place_tags(self.tags, place, self.layout.sums))
        self.digests = dict(sorted(self.digests.items()))
        frames = [frame("Lost", session, self._dealer_bitmap(lost))] if lost else []
        return frames + ([self._deposit()] if self.layout.hybrid else [])

    def _open(self, sender: int, envelope: bytes) -> Rows | None:
        """The rows of an envelope, or nothing if it counts as missing."""
        kem = (b"", b"")
        if self.layout.hybrid:
            kem = self._received_kem(envelope[:KEM_CIPHERTEXT])
        plaintext = crypto.unseal(self.network.session, self._channel(sender), sender, self.id, kem, envelope)
        if plaintext is None:
            return None
        shares = chunks(plaintext, SHARE)
        if any(int.from_bytes(share, "big") >= crypto.PRIME for share in shares):
            return None
        if self.layout.hybrid:
            self._learn_pair(sender, kem)
        columns = self.layout.columns
        return [shares[start : start + columns] for start in range(0, len(shares), columns)]

    def _received_kem(self, ciphertext: bytes) -> tuple[bytes, bytes]:
        return MLKEM768PrivateKey.from_seed_bytes(self.secrets.kem_seed).decapsulate(ciphertext), ciphertext

    def _learn_pair(self, peer: int, received: tuple[bytes, bytes]) -> None:
        sent, session = self.secrets.encapsulations[peer], self.network.session
        up, down = (sent, received) if self.id < peer else (received, sent)
        root = crypto.pair_root(session, min(self.id, peer), max(self.id, peer), up, down)
        self.pair_secrets[peer] = [crypto.pair_secret(session, root, k) for k in range(self.layout.sums)]

    def _digest(self, dealer: int, rows: Rows) -> bytes:
        """The tags digest that rows received from a dealer should have."""
        session = self.network.session
        hashes = [crypto.row_hashes(session, dealer, self.id, k, row) for k, row in enumerate(rows)]
        return crypto.tags_digest(b"".join(map(crypto.row_tag, hashes)))

    def _receipt(self) -> bytes:
        return crypto.receipt(self.digests.items())

    def _dealer_bitmap(self, dealers: list[int]) -> bytes:
        ids = self.network.ids
        return bitmap([ids.index(dealer) for dealer in dealers], len(ids))

    def _deposit(self) -> bytes:
        session, deposits = self.network.session, b""
        for peer in self.digests:
            if peer != self.id:
                deposits += b"".join(self._padded(peer, k) for k in range(self.layout.sums))
        signature = self.sign("deposit", [session, self._receipt(), deposits])
        return frame("Deposit", session, deposits, signature)

    def _padded(self, peer: int, k: int) -> bytes:
        session, secret = self.network.session, self.pair_secrets[peer][k]
        padded = crypto.pad_deposit(session, self.secrets.dealt[k], self.id, peer, k, secret)
        return padded + crypto.pair_secret_tag(session, self.id, peer, k, secret)

    # --- A sum (9)

    def asked(self, data: bytes, residues: Residues | None, declines: bool) -> list[bytes]:
        """`Query`: answer with the residues of the input, decline, or stay silent if there are none."""
        m, network = parse(data), self.network
        k, spec, roster, query = m.number(0), self.table[m.text(2)], m.data(3), tagged("query", data)
        context = crypto.mask_context(network.session, k, query, spec.digest, network.cohort_digest, roster)
        group = (spec.group or m.text(2), m.number(1))
        self.sum = CurrentSum(k, group, query, spec, roster, context)
        assert in_bitmap(roster, network.positions[self.id])
        if declines or group in self.unconfirmed:
            return [frame("Decline", network.session, k)]
        if residues is None:
            return []
        self.unconfirmed.add(group)
        return [self._masked_input(residues)]

    def roster_neighbours(self) -> list[int]:
        """The other members of the neighbourhood that the current sum was asked of, in order."""
        return [i for i in self.network.ids if i != self.id and self._in(self.sum.roster, i)]

    def _in(self, clients: bytes, client: int) -> bool:
        return in_bitmap(clients, self.network.positions[client])

    def seeds(self) -> dict[int, bytes]:
        """The seeds of the masks by neighbour; under the client's own id, that of the self mask."""
        session, k, context = self.network.session, self.sum.k, self.sum.context
        seeds = {self.id: crypto.self_seed(session, context, self.id, self.secrets.self_masks[k])}
        for peer in self.roster_neighbours():
            agreed = crypto.agree(self._mask_secret(k), self.network.members[peer].mask_keys[k])
            secret = self.pair_secrets[peer][k] if self.layout.hybrid else b""
            seeds[peer] = crypto.pair_seed(session, context, self.id, peer, agreed, secret)
        return seeds

    def noise_streams(self) -> list[bytes]:
        """The seeds of the streams of components 1, 2, ... of the current sum."""
        seeds = enumerate(self.secrets.seeds[self.sum.k], start=1)
        session, context = self.network.session, self.sum.context
        return [crypto.noise_stream(session, context, self.id, number, seed) for number, seed in seeds]

    def _hidden_count(self) -> int:
        return 1

    def _masked_input(self, residues: Residues) -> bytes:
        spec, count, words, seeds = self.sum.spec, self._hidden_count(), b"", self.seeds()
        masked = {name: list(values) for name, values in residues.items()}
        for peer, seed in seeds.items():
            mask, word = spec.mask(seed)
            sign = 1 if peer <= self.id else -1
            spec.add(masked, mask, sign)
            count = (count + sign * word) % (1 << 64)
            words += word.to_bytes(8, "little") if peer != self.id else b""
        packed = spec.pack(masked, count)
        parts, last = packed[:-8], packed[-8:]
        fields = [
            *self.sum.fields(self.network.session),
            self._receipt(),
            tagged("masked parts", parts),
            last,
            words,
        ]
        signature = self.sign("masked input", fields)
        return frame("MaskedInput", self.network.session, self.sum.k, packed, words, signature)

    def survived(self, data: bytes) -> list[bytes]:
        """`Survivors`: confirm the set, or reveal at once without signatures."""
        message = parse(data)
        assert message.number(0) == self.sum.k
        self.sum.survivors = message.data(1)
        if not self.layout.signed:
            return [self._reveal()]
        signature = self.sign("survivors", self._survivor_fields())
        return [frame("Confirmation", self.network.session, self.sum.k, signature)]

    def _survivor_fields(self) -> list[bytes]:
        return [*self.sum.fields(self.network.session), self.sum.survivors]

    def confirmed(self, data: bytes) -> list[bytes]:
        """`Confirmations`: reveal."""
        message = parse(data)
        records = chunks(message.data(1), 68)
        for record in records:
            key = self.keys[int.from_bytes(record[:4], "big")]
            assert crypto.verifies(key, "survivors", self._survivor_fields(), record[4:])
        assert len(records) >= self.network.t
        return [self._reveal()]

    def _reveal(self) -> bytes:
        session, current = self.network.session, self.sum
        removed = current.removed
        dealers = [i for i in self.network.ids if i in self.held and self._in(current.roster, i)]
        shares = hidden = b""
        for dealer in dealers:
            row = self.held[dealer][current.k]
            columns = revealed_columns(self._in(current.survivors, dealer), removed)
            hashes = crypto.row_hashes(session, dealer, self.id, current.k, row)
            shares += b"".join(self._shown(dealer, row[column]) for column in columns)
            hidden += b"".join(digest for column, digest in enumerate(hashes) if column not in columns)
        marked = self._dealer_bitmap(dealers)
        fields = [*self._survivor_fields(), bytes(removed), self._receipt(), marked, shares, hidden]
        self.unconfirmed.discard(current.group)
        return frame("Reveal", session, current.k, marked, shares, hidden, self.sign("reveal", fields))

    def _shown(self, dealer: int, share: bytes) -> bytes:
        """What the client reveals for a share of a dealer."""
        return share

    # --- Endings (11)

    def leave(self) -> bytes:
        """The frame with which the client leaves."""
        return frame("Leave", self.context)
