"""The set-up of a session for the verifier: keys, shares and their tags, reports and deposits.

Written from sections 3, 4, 6 and 8 of docs/protocol.md; it shares no code with the package.
"""

from itertools import chain
from math import comb, perm
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests import verifier_hybrid as hybrid
from tests import verifier_table as tables
from tests.verifier_tools import (
    agree,
    are_dealt,
    digest,
    framed,
    is_signed,
    need,
    pack,
    public,
    row_tag,
    share_hash,
    u32,
    unpack,
)

VERSION = 2
INVITATION, KEY_LIST, DELIVERY, QUERY, SURVIVORS, CONFIRMATIONS, GROUP_CLOSED, FAREWELL = range(1, 9)
NEIGHBOURS = 9
ADVERTISEMENT, SHARES, MASKED_INPUT, CONFIRMATION, REVEAL, DECLINE, LEAVE, LOST, DEPOSIT = range(16, 25)


class Session:
    """Walks the frames in order. Clients are in ascending order of id throughout."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.ids, self.at, self.context = data, data["members"], 0, b""
        self.heard: list[int] = []  # who got the last frame of the server
        self.clients = {k: data["clients"][str(k)] for k in self.ids}
        self.keys = {int(k): bytes.fromhex(v) for k, v in data["registry"]["members"].items()}
        self.hybrid = data["key_agreement"] == hybrid.HYBRID
        self.around = dict.fromkeys(self.ids, self.ids)  # with whom each shares its secrets, itself included
        self.least = max(data["threshold"], data["policy"]["min_contributors"])  # clients in a total
        self.noise_seeds = max(map(tables.seeds, data["table"].values()))  # of every client, for each sum
        self.tags: dict[int, dict[int, bytes]] = {}  # dealer -> holder -> tags of the rows of all sums
        self.accepted: dict[int, list[int]] = {}  # holder -> dealers whose shares it has
        self.receipts: dict[int, bytes] = {}
        self.present: list[int] = []  # who can be asked
        if "order" in data:
            self.draw_ring(data["order"], data["neighbours"] // 2)

    # --- the ring ---

    def draw_ring(self, order: list[int], half: int) -> None:
        need(sorted(order) == self.ids and 0 < 2 * half < len(order), "no ring of these clients")
        for at, member in enumerate(order):
            steps = range(at - half, at + half + 1)
            self.around[member] = sorted(order[step % len(order)] for step in steps)
        self.least = max(self.least, self.check_chances(len(order), 2 * half))
        differ = self.data["policy"].get("min_difference", 0)
        if differ:
            need(self.data["named"], "sets of clients that nobody can compare")
            witnesses = -(-self.least * self.data["threshold"] // (2 * half + 1))
            need(witnesses - self.data["policy"]["corrupt"] >= differ, "a total that too few know of")

    def check_chances(self, size: int, neighbours: int) -> int:
        """That the order helps the colluders is rare; how many must be in a total for it to stay so."""
        corrupt, bits = (int(self.data["policy"][key]) for key in ("corrupt", "security_bits"))
        holders = range(self.data["threshold"], neighbours + 1)
        reached = sum(comb(corrupt, x) * comb(size - 1 - corrupt, neighbours - x) for x in holders)
        need(size * reached << bits + 1 <= comb(size - 1, neighbours), "a threshold that colluders reach")
        cuts = [size * (size - neighbours - 1) * perm(missing, neighbours) for missing in range(size + 1)]
        whole = [missing for missing, cut in enumerate(cuts) if cut << bits < perm(size, neighbours)]
        need(corrupt in whole, "a ring that colluders can cut")
        return size - (max(whole) - corrupt)

    # --- frames ---

    def next_frame(self) -> bytes:
        need(self.at < len(self.data["frames"]), "the transcript ends too early")
        return bytes.fromhex(self.data["frames"][self.at]["frame"])

    def expect(self, sender: Any, receivers: list[Any], code: int, *fields: Any) -> bytes:
        """Take the next frame, which must be this one to the last bit."""
        frame, row = self.next_frame(), self.data["frames"][self.at]
        need(row["from"] == sender and sorted(row["to"] + row["lost"]) == receivers, f"misrouted: {self.at}")
        same = frame == pack([VERSION, code, self.context, *fields])
        need(same, f"frame {self.at} is not what its secrets give")
        self.at += 1
        self.heard = row["to"]
        return frame

    def signature(self, member: int, field: int, purpose: str, *fields: bytes) -> bytes:
        """The verified signature at the end of a field of the next frame; nothing in an unsigned session."""
        if not self.keys:
            return b""
        values = unpack(self.next_frame())
        need(len(values) > field and isinstance(values[field], bytes), f"frame {self.at} is of another type")
        signature = bytes(values[field][-64:])
        valid = is_signed(self.keys[member], signature, framed(f"signature: {purpose}", *fields))
        need(valid, f"frame {self.at} has a bad signature for {purpose!r}")
        return signature

    def bitmap(self, members: list[int], within: list[int]) -> bytes:
        return int(sum(1 << within.index(k) for k in members)).to_bytes((len(within) + 7) // 8, "little")

    # --- keys ---

    def set_up(self) -> None:
        data, ids = self.data, self.ids
        self.specs = {kind: tables.spec_digest(spec) for kind, spec in data["table"].items()}
        self.table = tables.table_digest(data["table"])
        listed = data["registry"]
        self.registry = tables.registry_digest(listed["version"], listed["expires"], self.keys)
        need(data["trust"] == ("malicious_server" if self.keys else "curious_server"), "another trust level")
        offer = [data["trust"], data["key_agreement"], data["session_sums"], self.table]
        offer += [self.registry if self.keys else b"", self.next_frame()[-32:]]
        invitation = self.expect("server", ids, INVITATION, *offer)
        self.context = self.invited = digest("invitation", invitation)
        adverts = {k: self.advert(k) for k in ids}
        dealers = self.introduce(invitation, adverts)
        need(self.context.hex() == data["session"], "another session id")
        parcels = {k: self.deal(k) for k in dealers}
        self.deliver(parcels)

    def introduce(self, invitation: bytes, adverts: dict[int, bytes]) -> list[int]:
        """The list of keys, one for all, or on a ring one for each; then the session id that follows. Returns
        the clients that got it."""
        data, ids, threshold = self.data, self.ids, self.data["threshold"]
        if "order" not in data:
            key_list = self.expect("server", ids, KEY_LIST, threshold, b"".join(adverts.values()))
            self.context, self.cohort = digest("session", invitation, key_list), digest("cohort", u32(*ids))
            second_audience = len(ids) - threshold if self.keys else 0  # which a malicious server may have
            need(second_audience + data["policy"]["corrupt"] < threshold <= len(ids), "an unsafe threshold")
            return self.heard
        need(not self.keys, "a ring drawn by a server that may be malicious")
        self.cohort, names, found = digest("ring", *adverts.values()), b"", list[int]()
        if data["named"]:
            names = u32(*ids)
        for member, around in self.around.items():
            records = b"".join(u32(ids.index(k)) + adverts[k] for k in around)
            self.expect("server", [member], NEIGHBOURS, len(ids), threshold, self.cohort, records, names)
            found += self.heard
        numbers = map(u32, (len(ids), data["neighbours"], threshold))
        self.context = digest("ring session", invitation, *numbers, self.cohort, names)
        return found

    def advert(self, member: int) -> bytes:
        own, name, sums = self.clients[member], u32(member), self.data["session_sums"]
        kem = hybrid.kem_public(own["kem_seed"]) if self.hybrid else b""
        masks = [public(self.mask_secret(member, k)) for k in range(sums)]
        seeds = [(name, u32(k), bytes.fromhex(seed)) for k, seed in enumerate(own["self_masks"])]
        noises = [
            (name, u32(k), u32(number), bytes.fromhex(seed))
            for k, row in enumerate(own.get("noise_seeds", []))
            for number, seed in enumerate(row, start=1)
        ]
        lengths = [len(own["mask_keys"]), len(seeds), len(noises)]
        need(lengths == [sums, sums, sums * self.noise_seeds], f"client {member} has other secrets")
        commitments = [digest("self mask commitment", *row) for row in seeds]
        commitments += [digest("noise commitment", *row) for row in noises]
        body = b"".join([name, public(own["channel"]), kem, *masks, *commitments])
        advert = body + self.signature(member, 3, "advert", self.context, body)
        self.expect(member, ["server"], ADVERTISEMENT, advert)
        return advert

    def mask_secret(self, member: int, index: int) -> str:
        """The X25519 secret of a client's mask key."""
        return hybrid.mask_key(bytes.fromhex(self.clients[member]["mask_keys"][index]), self.hybrid).hex()

    # --- shares ---

    def deal(self, dealer: int) -> dict[int, bytes]:
        """Check the polynomials of `dealer`, its tags and what it sealed; its parcel for each neighbour."""
        own, around = self.clients[dealer], self.around[dealer]
        rows = [self.rows(dealer, index) for index in range(self.data["session_sums"])]
        texts = {k: b"".join(b"".join(row[at]) for row in rows) for at, k in enumerate(around)}
        self.tags[dealer] = {
            k: b"".join(self.tag(dealer, k, index, row[at]) for index, row in enumerate(rows))
            for at, k in enumerate(around)
        }
        others, tags = [k for k in around if k != dealer], b"".join(self.tags[dealer].values())
        if self.hybrid:
            need(sorted(own["encapsulations"]) == sorted(map(str, others)), "encapsulations for others")
        envelopes = {k: self.seal(dealer, k, texts[k]) for k in others}
        signature = self.signature(dealer, 4, "key list", self.context)
        tags_signature = self.signature(dealer, 6, "share tags", self.context, tags)
        blob = b"".join(envelopes.values())
        self.expect(dealer, ["server"], SHARES, blob, signature, tags, tags_signature)
        heads = {k: u32(dealer) + digest("share tags", self.tags[dealer][k]) for k in others}
        return {k: heads[k] + envelopes[k] + signature for k in others}

    def rows(self, dealer: int, index: int) -> list[list[bytes]]:
        """For each holder, the shares that it is dealt for a sum; all lie on polynomials of the secrets."""
        own = self.clients[dealer]
        self_mask = own.get("decoys", {}).get(str(index), own["self_masks"][index])
        dealt = [(self_mask, own["self_mask_shares"][index])]
        dealt += [(own["mask_keys"][index], own["mask_key_shares"][index])]
        if self.noise_seeds:
            dealt += zip(own["noise_seeds"][index], own["noise_shares"][index], strict=True)
        for secret, shares in dealt:
            sound = are_dealt(secret, tuple(shares), self.data["threshold"])
            need(sound and len(shares) == len(self.around[dealer]), f"shares dealt by {dealer}")
        return [list(map(bytes.fromhex, row)) for row in zip(*(shares for _, shares in dealt), strict=True)]

    def hashes(self, dealer: int, holder: int, index: int, row: list[bytes]) -> list[bytes]:
        return [share_hash(self.context, dealer, holder, index, c, share) for c, share in enumerate(row)]

    def tag(self, dealer: int, holder: int, index: int, row: list[bytes]) -> bytes:
        return row_tag(self.hashes(dealer, holder, index, row))

    def seal(self, sender: int, receiver: int, text: bytes) -> bytes:
        info, kem, ciphertext = framed("envelope", u32(sender), u32(receiver)), b"", b""
        if self.hybrid:
            made = self.clients[sender]["encapsulations"][str(receiver)]
            kem, ciphertext = bytes.fromhex(made["secret"]), bytes.fromhex(made["ciphertext"])
            opened = hybrid.decapsulated(self.clients[receiver]["kem_seed"], ciphertext)
            need(opened == kem, f"another KEM secret from {sender} to {receiver}")
        if receiver in self.clients[sender].get("unreadable", []):
            return bytes(len(ciphertext) + len(text) + 16)
        channels = [self.clients[k]["channel"] for k in (sender, receiver)]
        key = agree(channels[0], channels[1], self.context, info + ciphertext, kem)
        return ciphertext + AESGCM(key).encrypt(bytes(12), text, self.context + info)

    # --- what everybody gets ---

    def deliver(self, parcels: dict[int, dict[int, bytes]]) -> None:
        """The parcels of each client that dealt; reports of those that do not open; deposits."""
        reached = []
        for k in parcels:
            self.expect("server", [k], DELIVERY, b"".join(each.get(k, b"") for each in parcels.values()))
            reached += self.heard
        need(self.hybrid or reached == list(parcels), "clients that can be asked without having shares")
        for k in reached:
            self.receive(k, parcels)
        self.present = reached

    def receive(self, holder: int, parcels: dict[int, dict[int, bytes]]) -> None:
        around = self.around[holder]
        sealed = [k for k in around if k == holder or holder in parcels.get(k, {})]
        lost = [k for k in sealed if holder in self.clients[k].get("unreadable", [])]
        self.accepted[holder] = [k for k in sealed if k not in lost]
        records = [u32(k) + digest("share tags", self.tags[k][holder]) for k in self.accepted[holder]]
        self.receipts[holder] = digest("receipt", *records)
        if lost:
            self.expect(holder, ["server"], LOST, self.bitmap(lost, around))
        if self.hybrid:
            peers, sums = [k for k in self.accepted[holder] if k != holder], range(self.data["session_sums"])
            deposits = b"".join(chain.from_iterable(self.deposit(holder, k, i) for k in peers for i in sums))
            fields = (self.context, self.receipts[holder], deposits)
            self.expect(holder, ["server"], DEPOSIT, deposits, self.signature(holder, 4, "deposit", *fields))

    def pair_secret(self, one: int, other: int, index: int) -> bytes:
        ends = {a: self.clients[a]["encapsulations"][str(b)] for a, b in ((one, other), (other, one))}
        return hybrid.pair_secret(self.context, ends, index)

    def deposit(self, owner: int, peer: int, index: int) -> tuple[bytes, bytes]:
        """The padded pair secret of a sum, and its tag."""
        secret, dealt = self.pair_secret(owner, peer, index), self.clients[owner]["mask_keys"][index]
        padded = hybrid.opened_deposit(secret, bytes.fromhex(dealt), self.context, owner, peer, index)
        return padded, hybrid.pair_secret_tag(self.context, owner, peer, index, secret)
