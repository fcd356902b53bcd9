"""A second implementation of the protocol: it replays a transcript and believes nothing in it.

It shares no code with the package: pure integers, `hashlib`, `hmac`, the primitives of `cryptography`. A
transcript (vectors/README.md) has every frame of a session and the one-time secrets behind it. From these,
`verify` makes each frame anew and compares every byte; signatures and the nonce, which it cannot make, it
takes from the frame: signatures it verifies, and the nonce enters all later digests.
"""

import hashlib
import hmac
import struct
from functools import cache
from math import comb, perm, prod
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PRIME = 2**256 + 297
INVITATION, KEY_LIST, DELIVERY, QUERY, SURVIVORS, CONFIRMATIONS, GROUP_CLOSED, FAREWELL = range(1, 9)
NEIGHBOURS = 9
ADVERTISEMENT, SHARES, MASKED_INPUT, CONFIRMATION, REVEAL, DECLINE, LEAVE = range(16, 23)


class Rejected(Exception):
    """The transcript is not one of the protocol; says where it goes wrong."""


def need(condition: bool, why: str) -> None:
    if not condition:
        raise Rejected(why)


def pack(value: Any) -> bytes:
    """Canonical MessagePack of short lists, floats, unsigned integers, text and bytes."""
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(pack, value))
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return bytes([0xA0 | len(value)] if len(value) < 32 else [0xD9, len(value)]) + value.encode()
    if isinstance(value, int) and value < 128:
        return bytes([value])
    first, number, tail = (0xCC, value, b"") if isinstance(value, int) else (0xC4, len(value), value)
    width = next(w for w in range(4) if number < 1 << (8 << w))
    return bytes([first + width]) + number.to_bytes(1 << width, "big") + tail


def framed(purpose: str, *fields: bytes) -> bytes:
    chunks = (f"secagg/1 {purpose}".encode(), *fields)
    return b"".join(len(chunk).to_bytes(8, "big") + chunk for chunk in chunks)


def digest(purpose: str, *fields: bytes) -> bytes:
    return hashlib.sha256(framed(purpose, *fields)).digest()


def hkdf(material: bytes, salt: bytes, info: bytes) -> bytes:
    return hmac.digest(hmac.digest(salt, material, "sha256"), info + b"\x01", "sha256")


def u32(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in values)


def private(secret: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))


@cache
def agree(secret: str, other: str, salt: bytes, info: bytes) -> bytes:
    return hkdf(private(secret).exchange(private(other).public_key()), salt, info)


def keystream(seed: bytes, layout: list[tuple[int, int]]) -> list[list[int]]:
    """AES-CTR, cut into little-endian words of the width of each (size, bits) in `layout`."""
    stream = Cipher(algorithms.AES(seed[:16]), modes.CTR(seed[16:])).encryptor()
    widths = [(size, next(w for w in (1, 2, 4, 8) if bits <= 8 * w)) for size, bits in layout]
    return [[int.from_bytes(stream.update(bytes(w)), "little") for _ in range(n)] for n, w in widths]


def packed_sum(terms: list[tuple[int, list[list[int]]]], layout: list[tuple[int, int]]) -> bytes:
    """The sum of sign * vectors modulo 2^b; element i of a part in bits i*b to i*b + b - 1, little-endian."""
    packed = b""
    for k, (size, bits) in enumerate(layout):
        values = [sum(sign * vectors[k][i] for sign, vectors in terms) % 2**bits for i in range(size)]
        packed += sum(v << i * bits for i, v in enumerate(values)).to_bytes((size * bits + 7) // 8, "little")
    return packed


def value_at(x: int, points: dict[int, int]) -> int:
    """The value at `x` of the polynomial through `points`, by Lagrange."""
    others = {a: [b for b in points if b != a] for a in points}
    slopes = {a: pow(prod(a - b for b in others[a]), -1, PRIME) for a in points}
    return sum(points[a] * slopes[a] * prod(x - b for b in others[a]) for a in points) % PRIME


class Replay:
    """Walks the frames in order. Clients are in ascending order of id throughout."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.ids, self.at, self.context = data, data["members"], 0, b""
        self.clients = {k: data["clients"][str(k)] for k in self.ids}
        self.keys = {int(k): bytes.fromhex(v) for k, v in data["registry"]["members"].items()}
        self.confirmed: dict[tuple[str, int], list[int]] = {}  # (group, round) -> survivors
        self.around = dict.fromkeys(self.ids, self.ids)  # with whom each shares its secrets, itself included
        self.least = data["threshold"]  # clients in a total
        if "order" in data:
            self.draw_ring(data["order"], data["neighbours"] // 2)

    def draw_ring(self, order: list[int], half: int) -> None:
        need(sorted(order) == self.ids and 0 < 2 * half < len(order), "no ring of these clients")
        for at, member in enumerate(order):
            steps = range(at - half, at + half + 1)
            self.around[member] = sorted(order[step % len(order)] for step in steps)
        self.least = max(self.least, self.check_chances(len(order), 2 * half))

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

    def next_frame(self) -> bytes:
        need(self.at < len(self.data["frames"]), "the transcript ends too early")
        return bytes.fromhex(self.data["frames"][self.at]["frame"])

    def expect(self, sender: Any, receivers: list[Any], code: int, *fields: Any) -> bytes:
        """Take the next frame, which must be this one to the last bit."""
        frame, row = self.next_frame(), self.data["frames"][self.at]
        need(row["from"] == sender and sorted(row["to"] + row["lost"]) == receivers, f"misrouted: {self.at}")
        need(frame == pack([1, code, self.context, *fields]), f"frame {self.at} is not what its secrets give")
        self.at += 1
        return frame

    def signature(self, member: int, purpose: str, *fields: bytes) -> bytes:
        """The verified signature at the end of the next frame; nothing in an unsigned session."""
        if not self.keys:
            return b""
        key, signature = Ed25519PublicKey.from_public_bytes(self.keys[member]), self.next_frame()[-64:]
        try:
            key.verify(signature, framed(f"signature: {purpose}", *fields))
        except InvalidSignature:
            raise Rejected(f"frame {self.at} has a bad signature for {purpose!r}") from None
        return signature

    def bitmap(self, members: list[int], within: list[int]) -> bytes:
        return int(sum(1 << within.index(k) for k in members)).to_bytes((len(within) + 7) // 8, "little")

    def spec_digest(self, kind: str) -> bytes:
        spec = self.data["table"][kind]
        rows = [[p["name"], p["size"], p["bits"], p["bound"], p.get("limit", 0.0)] for p in spec["parts"]]
        return digest("spec", pack([rows, spec["times"], spec["group"] or ""]))

    def set_up(self) -> None:
        data, ids = self.data, self.ids
        table = [field for k in sorted(data["table"]) for field in (k.encode(), self.spec_digest(k))]
        members = b"".join(u32(k) + self.keys[k] for k in sorted(self.keys))
        registry = digest("registry", data["registry"]["version"].to_bytes(8, "big"), members)
        offer = [data["trust"], data["session_sums"], digest("table", *table), registry if self.keys else b""]
        invitation = self.expect("server", ids, INVITATION, *offer, self.next_frame()[-32:])
        self.context = self.invited = digest("invitation", invitation)
        adverts = {k: self.advert(k) for k in ids}
        self.introduce(invitation, adverts)
        need(self.context.hex() == data["session"], "another session id")
        parcels = list(map(self.deal, ids))
        for k in ids:
            self.expect("server", [k], DELIVERY, b"".join(parcel.get(k, b"") for parcel in parcels))

    def introduce(self, invitation: bytes, adverts: dict[int, bytes]) -> None:
        """The list of keys, one for all, or on a ring one for each; then the session id that follows."""
        data, ids, threshold = self.data, self.ids, self.data["threshold"]
        if "order" not in data:
            key_list = self.expect("server", ids, KEY_LIST, threshold, b"".join(adverts.values()))
            self.context, self.cohort = digest("session", invitation, key_list), digest("cohort", u32(*ids))
            second_audience = len(ids) - threshold if self.keys else 0  # which a malicious server may have
            need(second_audience + data["policy"]["corrupt"] < threshold <= len(ids), "an unsafe threshold")
            return
        need(not self.keys, "a ring drawn by a server that may be malicious")
        self.cohort = digest("ring", *adverts.values())
        for member, around in self.around.items():
            records = b"".join(u32(ids.index(k)) + adverts[k] for k in around)
            self.expect("server", [member], NEIGHBOURS, len(ids), threshold, self.cohort, records)
        numbers = map(u32, (len(ids), data["neighbours"], threshold))
        self.context = digest("ring session", invitation, *numbers, self.cohort)

    def advert(self, member: int) -> bytes:
        own, name = self.clients[member], u32(member)
        keys = [private(s).public_key().public_bytes_raw() for s in (own["channel"], *own["mask_keys"])]
        seeds = [(name, u32(k), bytes.fromhex(seed)) for k, seed in enumerate(own["self_masks"])]
        body = b"".join([name, *keys, *(digest("self mask commitment", *row) for row in seeds)])
        advert = body + self.signature(member, "advert", self.context, body)
        self.expect(member, ["server"], ADVERTISEMENT, advert)
        return advert

    def deal(self, sender: int) -> dict[int, bytes]:
        """Check the polynomials of `sender` and what it sealed; its parcel for each neighbour."""
        own, around = self.clients[sender], self.around[sender]
        others, texts = [k for k in around if k != sender], [b""] * len(around)
        for index in range(self.data["session_sums"]):
            for secret, rows in (("self_masks", "self_mask_shares"), ("mask_keys", "mask_key_shares")):
                shares = own[rows][index]
                points = dict(enumerate(int(number, 16) for number in (own[secret][index], *shares)))
                base = {x: points[x] for x in range(1, self.data["threshold"] + 1)}
                need(all(value_at(x, base) == y for x, y in points.items()), f"shares dealt by {sender}")
                texts = [text + bytes.fromhex(share) for text, share in zip(texts, shares, strict=True)]
        envelopes = [self.seal(sender, receiver, texts[around.index(receiver)]) for receiver in others]
        signature = self.signature(sender, "key list", self.context)
        self.expect(sender, ["server"], SHARES, b"".join(envelopes), signature)
        return {k: u32(sender) + one + signature for k, one in zip(others, envelopes, strict=True)}

    def seal(self, sender: int, receiver: int, text: bytes) -> bytes:
        info = framed("envelope", u32(sender), u32(receiver))
        key = agree(*(self.clients[k]["channel"] for k in (sender, receiver)), self.context, info)
        return AESGCM(key).encrypt(bytes(12), text, self.context + info)

    def replay_sum(self, index: int, entry: dict[str, Any]) -> None:
        roster, ids, around = entry["roster"], self.ids, self.around
        group = (self.data["table"][entry["kind"]]["group"] or entry["kind"], entry["round"])
        need(self.confirmed.get(group, roster) == roster, f"sum {index} changes the clients of its group")
        asked, payload = self.bitmap(roster, ids), bytes.fromhex(entry["payload"])
        query = self.expect("server", roster, QUERY, index, entry["round"], entry["kind"], asked, payload)
        fields = (self.context, u32(index), digest("query", query), self.spec_digest(entry["kind"]))
        context = digest("mask context", *fields, self.cohort, asked)
        need(context.hex() == entry["context"], f"sum {index} has another mask context")
        for member in roster:
            if member in entry["declined"]:
                self.expect(member, ["server"], DECLINE, index)
            if str(member) in entry["inputs"]:
                self.masked_input(index, entry, member)
        survivors, revealers = [k for k in roster if str(k) in entry["inputs"]], entry["revealers"]
        enough = len(survivors) >= self.least
        need(enough == bool(entry["total"]), f"sum {index} was released or closed wrongly")
        if not entry["total"]:
            self.expect("server", roster, GROUP_CLOSED, index)
            return
        shares_out = min(len(set(revealers) & set(around[k])) for k in roster)  # of anybody's secret
        need(shares_out >= self.data["threshold"], f"sum {index} has too few shares")
        alive, signatures = self.bitmap(survivors, ids), b""
        self.expect("server", survivors, SURVIVORS, index, alive)
        if self.keys:
            for member in revealers:
                signature = self.signature(member, "survivors", *fields, asked, alive)
                self.expect(member, ["server"], CONFIRMATION, index, signature)
                signatures += u32(member) + signature
            self.expect("server", revealers, CONFIRMATIONS, index, signatures)
        for holder in revealers:
            dealers = [k for k in around[holder] if k in roster]
            dealt = [(k, "self_mask_shares" if k in survivors else "mask_key_shares") for k in dealers]
            shares = "".join(self.clients[k][kind][index][around[k].index(holder)] for k, kind in dealt)
            given = self.bitmap(dealers, around[holder]), bytes.fromhex(shares)
            self.expect(holder, ["server"], REVEAL, index, *given)
        self.confirmed[group] = survivors
        self.check_total(index, entry)

    def masked_input(self, index: int, entry: dict[str, Any], member: int) -> None:
        given, parts = entry["inputs"][str(member)], self.data["table"][entry["kind"]]["parts"]
        layout = [*((part["size"], part["bits"]) for part in parts), (1, 64)]
        terms = [(1, [*(given["residues"][part["name"]] for part in parts), [1]])]
        peers = [k for k in self.around[member] if k in entry["roster"]]
        need(sorted(given["seeds"]) == sorted(map(str, peers)), f"sum {index} has masks with others")
        for peer in peers:
            seed = self.seed(index, bytes.fromhex(entry["context"]), member, peer)
            need(seed.hex() == given["seeds"][str(peer)], f"sum {index} has another seed")
            terms.append((1 if member >= peer else -1, keystream(seed, layout)))
        self.expect(member, ["server"], MASKED_INPUT, index, packed_sum(terms, layout))

    def seed(self, index: int, context: bytes, one: int, other: int) -> bytes:
        """Of the mask that two clients share, or of a client's own."""
        if one == other:
            secret = bytes.fromhex(self.clients[one]["self_masks"][index])
            return hkdf(secret, self.context, framed("self mask", context, u32(one)))
        info = framed("pair mask", context, u32(min(one, other)), u32(max(one, other)))
        return agree(*(self.clients[k]["mask_keys"][index] for k in (one, other)), self.context, info)

    def check_total(self, index: int, entry: dict[str, Any]) -> None:
        total, inputs = entry["total"], entry["inputs"].values()
        need([total["count"], total["invited"]] == [len(inputs), len(entry["roster"])], f"counts of {index}")
        for part in self.data["table"][entry["kind"]]["parts"]:
            columns = zip(*(given["residues"][part["name"]] for given in inputs), strict=True)
            values = residues = [sum(column) % 2 ** part["bits"] for column in columns]
            if part["bound"] in ("L2", "LInf"):
                half = 2 ** (part["bits"] - 1)
                scale = ((half - 1) // len(self.ids)) / part["limit"]
                values = [(r - 2 * half if r >= half else r) / scale for r in residues]
            listed = [total[key][part["name"]] for key in ("residues", "values")]
            need(listed == [residues, values], f"sum {index} has another total of {part['name']}")


def verify(data: dict[str, Any]) -> None:
    """Raise `Rejected` unless `data` is a transcript in which every byte is as it must be."""
    replay = Replay(data)
    replay.set_up()
    for index, entry in enumerate(data["sums"]):
        replay.replay_sum(index, entry)
    for member in data["leavers"]:
        replay.expect(member, ["server"], LEAVE)
    replay.context = replay.invited
    replay.expect("server", [k for k in replay.ids if k not in data["leavers"]], FAREWELL)
    need(replay.at == len(data["frames"]), "frames after the farewell")
