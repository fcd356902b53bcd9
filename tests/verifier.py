"""A second implementation of the protocol: it replays a transcript and believes nothing in it.

It shares no code with the package: `verifier_tools` has whole numbers, `hashlib`, `hmac`, the primitives of
`cryptography`, `verifier_noise` the noise. A transcript (vectors/README.md) has every frame of a session and
the one-time secrets behind it. From these, `verify` makes each frame anew and compares every byte; signatures
and the nonce, which it cannot make, it takes from the frame: signatures it verifies, and the nonce enters all
later digests.
"""

from fractions import Fraction
from math import comb, isclose, perm
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests import verifier_noise as noise
from tests.verifier_tools import (
    Rejected as Rejected,
)
from tests.verifier_tools import (
    agree,
    are_dealt,
    digest,
    framed,
    hkdf,
    is_signed,
    keystream,
    need,
    pack,
    packed_sum,
    public,
    u32,
)

INVITATION, KEY_LIST, DELIVERY, QUERY, SURVIVORS, CONFIRMATIONS, GROUP_CLOSED, FAREWELL = range(1, 9)
NEIGHBOURS = 9
ADVERTISEMENT, SHARES, MASKED_INPUT, CONFIRMATION, REVEAL, DECLINE, LEAVE = range(16, 23)


class Replay:
    """Walks the frames in order. Clients are in ascending order of id throughout."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.ids, self.at, self.context = data, data["members"], 0, b""
        self.clients = {k: data["clients"][str(k)] for k in self.ids}
        self.keys = {int(k): bytes.fromhex(v) for k, v in data["registry"]["members"].items()}
        self.confirmed: dict[tuple[str, int], list[int]] = {}  # (group, round) -> survivors
        self.known_laws: dict[tuple[str, int], list[tuple[tuple[Fraction, int], ...]]] = {}
        self.around = dict.fromkeys(self.ids, self.ids)  # with whom each shares its secrets, itself included
        self.least = data["threshold"]  # clients in a total
        promises = [spec["promise"] for spec in data["table"].values() if "promise" in spec]
        self.noise_seeds = max(map(noise.removable, promises), default=0)  # of every client, for each sum
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
        signature, text = self.next_frame()[-64:], framed(f"signature: {purpose}", *fields)
        valid = is_signed(self.keys[member], signature, text)
        need(valid, f"frame {self.at} has a bad signature for {purpose!r}")
        return signature

    def bitmap(self, members: list[int], within: list[int]) -> bytes:
        return int(sum(1 << within.index(k) for k in members)).to_bytes((len(within) + 7) // 8, "little")

    def spec_digest(self, kind: str) -> bytes:
        spec = self.data["table"][kind]
        fields = [list(map(self.part_fields, spec["parts"])), spec["times"], spec["group"] or ""]
        if "promise" in spec:
            names = ("clients", "dropouts", "colluders", "removable")
            fields.append([spec["promise"][name] for name in names])
        return digest("spec", pack(fields))

    def part_fields(self, part: dict[str, Any]) -> list[Any]:
        row = [part["name"], part["size"], part["bits"], part["bound"], part.get("limit", 0.0)]
        row += [part["total"]] if "total" in part else []
        if "noise" in part:
            variance = Fraction(part["noise"]["variance"])
            row.append([part["noise"]["scale"], str(variance.numerator), str(variance.denominator)])
            derived = [noise.width(part), noise.largest_norm2(part)]
            need([part["width"], part["norm2"]] == derived, f"part {part['name']} has another grid")
        return row

    def set_up(self) -> None:
        data, ids = self.data, self.ids
        self.specs = {kind: self.spec_digest(kind) for kind in sorted(data["table"])}
        table = [field for kind, spec in self.specs.items() for field in (kind.encode(), spec)]
        members = b"".join(u32(k) + self.keys[k] for k in sorted(self.keys))
        stamps = [data["registry"][name].to_bytes(8, "big") for name in ("version", "expires")]
        registry = digest("registry", *stamps, members)
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
        keys = [public(secret) for secret in (own["channel"], *own["mask_keys"])]
        seeds = [(name, u32(k), bytes.fromhex(seed)) for k, seed in enumerate(own["self_masks"])]
        noises = [
            (name, u32(k), u32(number), bytes.fromhex(seed))
            for k, row in enumerate(own.get("noise_seeds", []))
            for number, seed in enumerate(row, start=1)
        ]
        need(len(noises) == self.noise_seeds * len(seeds), f"client {member} has other seeds of noise")
        commitments = [digest("self mask commitment", *row) for row in seeds]
        commitments += [digest("noise commitment", *row) for row in noises]
        body = b"".join([name, *keys, *commitments])
        advert = body + self.signature(member, "advert", self.context, body)
        self.expect(member, ["server"], ADVERTISEMENT, advert)
        return advert

    def deal(self, sender: int) -> dict[int, bytes]:
        """Check the polynomials of `sender` and what it sealed; its parcel for each neighbour."""
        own, around = self.clients[sender], self.around[sender]
        others, texts = [k for k in around if k != sender], [b""] * len(around)
        for index in range(self.data["session_sums"]):
            dealt = [
                (own["self_masks"][index], own["self_mask_shares"][index]),
                (own["mask_keys"][index], own["mask_key_shares"][index]),
            ]
            if self.noise_seeds:
                dealt += zip(own["noise_seeds"][index], own["noise_shares"][index], strict=True)
            for secret, shares in dealt:
                sound = are_dealt(secret, tuple(shares), self.data["threshold"])
                need(sound, f"shares dealt by {sender}")
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
        fields = (self.context, u32(index), digest("query", query), self.specs[entry["kind"]])
        context = digest("mask context", *fields, self.cohort, asked)
        need(context.hex() == entry["context"], f"sum {index} has another mask context")
        for member in roster:
            if member in entry["declined"]:
                self.expect(member, ["server"], DECLINE, index)
            if str(member) in entry["inputs"]:
                self.masked_input(index, entry, member)
        survivors, revealers = [k for k in roster if str(k) in entry["inputs"]], entry["revealers"]
        enough = len(survivors) >= self.least and self.keeps_promise(index, entry)
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
            shares = "".join(self.revealed_shares(index, entry, k, holder) for k in dealers)
            given = self.bitmap(dealers, around[holder]), bytes.fromhex(shares)
            self.expect(holder, ["server"], REVEAL, index, *given)
        self.confirmed[group] = survivors
        self.check_total(index, entry)

    def keeps_promise(self, index: int, entry: dict[str, Any]) -> bool:
        """Whether the noise of those who answered is enough; if so, that what is removed leaves enough."""
        promise = self.data["table"][entry["kind"]].get("promise")
        if promise is None:
            return True
        roster, survivors = len(entry["roster"]), len(entry["inputs"])
        lost = promise["dropouts"] + promise["colluders"]
        need(lost < roster <= promise["clients"], f"sum {index} is of more or fewer than its noise is for")
        if roster - survivors > promise["dropouts"]:
            need(entry["surplus"] == [], f"sum {index} was abandoned")
            return False
        removed = noise.surplus(promise, roster, survivors)
        need(entry["surplus"] == removed, f"sum {index} has other surplus noise")
        need(noise.kept(promise, roster, survivors) >= 1, f"sum {index} keeps too little noise")
        return True

    def revealed_shares(self, index: int, entry: dict[str, Any], dealer: int, holder: int) -> str:
        """Of a survivor's self mask and surplus noise, or of the mask key of somebody who is missing."""
        own, at = self.clients[dealer], self.around[dealer].index(holder)
        if str(dealer) not in entry["inputs"]:
            return str(own["mask_key_shares"][index][at])
        layers = [own["noise_shares"][index][number - 1][at] for number in entry.get("surplus", [])]
        return "".join([own["self_mask_shares"][index][at], *layers])

    def masked_input(self, index: int, entry: dict[str, Any], member: int) -> None:
        given, parts = entry["inputs"][str(member)], self.data["table"][entry["kind"]]["parts"]
        layout = (*((noise.width(part), part["bits"]) for part in parts), (1, 64))
        terms = [(1, [*(given["residues"][part["name"]] for part in parts), [1]])]
        peers = [k for k in self.around[member] if k in entry["roster"]]
        need(sorted(given["seeds"]) == sorted(map(str, peers)), f"sum {index} has masks with others")
        for peer in peers:
            seed = self.seed(index, bytes.fromhex(entry["context"]), member, peer)
            need(seed.hex() == given["seeds"][str(peer)], f"sum {index} has another seed")
            terms.append((1 if member >= peer else -1, keystream(seed, layout)))
        if "promise" in self.data["table"][entry["kind"]]:
            self.check_noise(index, entry, member)
        self.expect(member, ["server"], MASKED_INPUT, index, packed_sum(terms, layout))

    def check_noise(self, index: int, entry: dict[str, Any], member: int) -> None:
        """That the residues are values near the client's own, with noise of all components."""
        given, seeds = entry["inputs"][str(member)], self.rotations(index, entry)
        layers = [self.layer(index, entry, member, k + 1) for k in range(len(given["noise_streams"]))]
        promise = self.data["table"][entry["kind"]]["promise"]
        need(len(layers) == noise.removable(promise), f"sum {index} has noise of another number of streams")
        for at, (name, part) in enumerate(self.noisy_parts(entry).items()):
            rounded, rows = given["rounded"][name], (given["noise"][name], *(row[at] for row in layers))
            columns = zip(rounded, *rows, strict=True)
            residues = [sum(column) % 2 ** part["bits"] for column in columns]
            need(residues == given["residues"][name], f"sum {index} has other noise on {name}")
            points = noise.grid_points(part, given["values"][name], seeds[name])
            far = max(abs(a - b) for a, b in zip(points, rounded, strict=True))
            room = 0 if part["bound"] == "Count" else 1 + 1e-9
            need(far <= room, f"sum {index} has other values of {name}")
            need(sum(k * k for k in rounded) <= part["norm2"], f"sum {index} has a long vector {name}")

    def noisy_parts(self, entry: dict[str, Any]) -> dict[str, Any]:
        parts = self.data["table"][entry["kind"]]["parts"]
        return {part["name"]: part for part in parts if "noise" in part}

    def rotations(self, index: int, entry: dict[str, Any]) -> dict[str, bytes]:
        """The seed of each part's rotation, whether it is rotated or not."""
        seed = digest("rotation seed", self.context, u32(index), self.specs[entry["kind"]])
        need(seed.hex() == entry["rotation"], f"sum {index} is rotated in another way")
        parts = self.data["table"][entry["kind"]]["parts"]
        return {part["name"]: digest("rotation", seed, u32(number)) for number, part in enumerate(parts)}

    def laws(self, kind: str, roster: int) -> list[tuple[tuple[Fraction, int], ...]]:
        """For each component, (variance, size) of the parts with noise."""
        if (kind, roster) not in self.known_laws:
            spec = self.data["table"][kind]
            noisy = [part for part in spec["parts"] if "noise" in part]
            rows = [(Fraction(part["noise"]["variance"]), part["width"]) for part in noisy]
            shares = noise.components(spec["promise"], roster)
            self.known_laws[kind, roster] = [tuple((s * v, size) for v, size in rows) for s in shares]
        return self.known_laws[kind, roster]

    def layer(self, index: int, entry: dict[str, Any], member: int, number: int) -> list[list[int]]:
        """The samples of a removable component, for each part with noise."""
        secret = bytes.fromhex(self.clients[member]["noise_seeds"][index][number - 1])
        info = framed("noise", bytes.fromhex(entry["context"]), u32(member), u32(number))
        seed, listed = hkdf(secret, self.context, info), entry["inputs"][str(member)]["noise_streams"]
        need(seed.hex() == listed[number - 1], f"sum {index} has another stream of noise")
        return noise.layer(seed, self.laws(entry["kind"], len(entry["roster"]))[number])

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
        removed = self.surplus_noise(index, entry)
        for part in self.data["table"][entry["kind"]]["parts"]:
            columns = list(zip(*(given["residues"][part["name"]] for given in inputs), strict=True))
            surplus = removed.get(part["name"]) or [0] * len(columns)
            rows = zip(columns, surplus, strict=True)
            values = residues = [(sum(column) - extra) % 2 ** part["bits"] for column, extra in rows]
            if "noise" in part:
                self.check_noisy_total(index, entry, part, residues)
                continue
            if part["bound"] in ("L2", "LInf"):
                half = 2 ** (part["bits"] - 1)
                scale = ((half - 1) // len(self.ids)) / part["limit"]
                values = [(r - 2 * half if r >= half else r) / scale for r in residues]
            listed = [total[key][part["name"]] for key in ("residues", "values")]
            need(listed == [residues, values], f"sum {index} has another total of {part['name']}")

    def surplus_noise(self, index: int, entry: dict[str, Any]) -> dict[str, list[int]]:
        """What all survivors' surplus components add up to, for each part with noise."""
        layers = [
            self.layer(index, entry, int(member), number)
            for member in entry["inputs"]
            for number in entry.get("surplus", [])
        ]
        rows = zip(*layers, strict=True)
        sums = [[sum(column) for column in zip(*row, strict=True)] for row in rows]
        return dict(zip(self.noisy_parts(entry), sums, strict=False))  # nothing, where nothing is surplus

    def check_noisy_total(self, index: int, entry: dict[str, Any], part: dict[str, Any],
                          residues: list[int]) -> None:  # fmt: skip
        name, total = part["name"], entry["total"]
        seed = self.rotations(index, entry)[name]
        values, listed = noise.total_of(part, residues, len(entry["roster"]), seed), total["values"][name]
        need(total["residues"][name] == residues, f"sum {index} has another total of {name}")
        # In which order a rotation adds floats is not laid down.
        room = 1e-12 * 2 ** part["bits"] / part["noise"]["scale"] if part["bound"] == "L2" else 0.0
        near = [isclose(a, b, rel_tol=0, abs_tol=room) for a, b in zip(values, listed, strict=True)]
        need(all(near), f"sum {index} has another total of {name}")


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
