"""A second implementation of the protocol: it replays a transcript and believes nothing in it.

It shares no code with the package: `verifier_tools` has whole numbers, `hashlib`, `hmac`, the primitives of
`cryptography`, `verifier_session` the set-up, `verifier_hybrid` ML-KEM, `verifier_noise` the noise,
`verifier_evidence` the evidence of lies. A transcript (vectors/README.md) has every frame of a session and
the one-time secrets behind it. From these, `verify` makes each frame anew and compares every byte; signatures
and the nonce, which it cannot make, it takes from the frame: signatures it verifies, and the nonce enters all
later digests.
"""

from fractions import Fraction
from math import isclose
from typing import Any

from tests import verifier_noise as noise
from tests import verifier_table as tables
from tests.verifier_evidence import items, verify_evidence
from tests.verifier_session import (
    CONFIRMATION,
    CONFIRMATIONS,
    DECLINE,
    FAREWELL,
    GROUP_CLOSED,
    LEAVE,
    MASKED_INPUT,
    QUERY,
    REVEAL,
    SURVIVORS,
    Session,
)
from tests.verifier_tools import (
    Rejected as Rejected,
)
from tests.verifier_tools import (
    agree,
    digest,
    framed,
    hkdf,
    keystream,
    need,
    packed_sum,
    u32,
)


class Replay(Session):
    """Replays the sums of a session after its set-up."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data)
        self.confirmed: dict[tuple[str, int], list[int]] = {}  # (group, round) -> survivors
        self.sets: dict[str, list[set[int]]] = {}  # kind -> survivors of its sums
        self.convicted: list[int] = []
        self.known_laws: dict[tuple[str, int], list[tuple[tuple[Fraction, int], ...]]] = {}

    # --- one sum ---

    def replay_sum(self, index: int, entry: dict[str, Any]) -> None:
        roster, kind = entry["roster"], entry["kind"]
        group = (self.data["table"][kind]["group"] or kind, entry["round"])
        expected = self.confirmed.get(group, [k for k in self.present if k not in self.convicted])
        need(roster == expected, f"sum {index} is of other clients")
        asked, payload = self.bitmap(roster, self.ids), bytes.fromhex(entry["payload"])
        query = self.expect("server", roster, QUERY, index, entry["round"], kind, asked, payload)
        fields = (self.context, u32(index), digest("query", query), self.specs[kind])
        context = digest("mask context", *fields, self.cohort, asked)
        need(context.hex() == entry["context"], f"sum {index} has another mask context")
        for member in roster:
            if member in entry["declined"]:
                self.expect(member, ["server"], DECLINE, index)
            if str(member) in entry["inputs"]:
                self.masked_input(index, entry, member, (*fields, asked))
        survivors = [k for k in roster if str(k) in entry["inputs"]]
        if len(survivors) < self.least or not self.keeps_promise(index, entry):
            self.close(index, entry, "TooFewClients", [])
            return
        self.check_difference(index, entry, survivors)
        self.unmask(index, entry, survivors, (*fields, asked))
        self.confirmed[group] = survivors

    def check_difference(self, index: int, entry: dict[str, Any], survivors: list[int]) -> None:
        """That sums of a kind are over the same clients, or over as different ones as the policy says."""
        least = self.data["policy"].get("min_difference", 0)
        earlier = self.sets.setdefault(entry["kind"], [])
        for members in (set(entry["roster"]), set(survivors)):
            close = [other for other in earlier if 0 < len(members ^ other) < least]
            need(members in earlier or not close, f"sum {index} is over nearly the same clients as another")
        earlier.append(set(survivors))

    def unmask(
        self, index: int, entry: dict[str, Any], survivors: list[int], fields: tuple[bytes, ...]
    ) -> None:
        alive = self.bitmap(survivors, self.ids)
        self.expect("server", survivors, SURVIVORS, index, alive)
        if self.keys:
            signatures, signers = b"", self.heard
            for member in signers:
                signature = self.signature(member, 4, "survivors", *fields, alive)
                self.expect(member, ["server"], CONFIRMATION, index, signature)
                signatures += u32(member) + signature
            need(len(signers) >= self.data["threshold"], f"sum {index} was confirmed by too few")
            self.expect("server", signers, CONFIRMATIONS, index, signatures)
        need(entry["revealers"] == self.heard, f"sum {index} has other revealers")
        for holder in entry["revealers"]:
            self.reveal(index, entry, holder, (*fields, alive))
        wrong = [(int(k), "wrong share") for k in entry.get("wrong_shares", {})]
        holders = [k for k in entry["revealers"] if (k, "wrong share") not in wrong]
        for dealer in entry["roster"]:
            shares_out = [k for k in holders if dealer in self.accepted[k]]
            need(len(shares_out) >= self.data["threshold"], f"sum {index} has too few shares of {dealer}")
        dealt, counted = self.false_dealings(index, survivors), self.false_counts(entry, survivors)
        if dealt:
            self.close(index, entry, "Unrecoverable", [*wrong, *dealt])
        elif counted:
            self.close(index, entry, "CorruptTotal", [*wrong, *counted])
        else:
            need("error" not in entry, f"sum {index} has a total")
            self.convict(index, entry, wrong)
            self.check_total(index, entry)

    def close(self, index: int, entry: dict[str, Any], error: str, lies: list[tuple[int, str]]) -> None:
        """The sum has no total, for this reason."""
        need(entry["total"] is None and entry.get("error") == error, f"sum {index} ended in another way")
        self.convict(index, entry, lies)
        left = [k for k in entry["roster"] if k not in self.convicted]
        self.expect("server", left, GROUP_CLOSED, index)

    # --- lies ---

    def false_dealings(self, index: int, survivors: list[int]) -> list[tuple[int, str]]:
        """Survivors whose shares open another secret than the one they committed to."""
        decoys = {k: self.clients[k].get("decoys", {}).get(str(index)) for k in survivors}
        masks = {k: self.clients[k]["self_masks"][index] for k in survivors}
        return [(k, "false dealing") for k in survivors if decoys[k] not in (None, masks[k])]

    def false_counts(self, entry: dict[str, Any], survivors: list[int]) -> list[tuple[int, str]]:
        counts = entry.get("counts", {})
        return [(k, "false count") for k in survivors if counts.get(str(k), 1) != 1]

    def convict(self, index: int, entry: dict[str, Any], lies: list[tuple[int, str]]) -> None:
        """Check that just these clients were convicted, and the evidence against them."""
        rows = entry.get("convicted", [])
        listed = [(row["member"], row["offence"]) for row in rows]
        need(listed == lies, f"other clients were convicted in sum {index}")
        policy, threshold = self.data["policy"], self.data["threshold"]
        for row in rows:
            evidence = bytes.fromhex(row["evidence"])
            need(items(evidence)[:2] == [row["offence"].encode(), u32(row["member"])], "other evidence")
            verify_evidence(
                evidence,
                registry_keys=self.keys,
                registry_digest=self.registry,
                specs=tables.shapes(self.data["table"]),
                table_digest=self.table,
                corrupt=max(1, min(policy["corrupt"], threshold - 1)),
            )
        self.convicted += [member for member, _ in lies]

    # --- shares ---

    def reveal(self, index: int, entry: dict[str, Any], holder: int, fields: tuple[bytes, ...]) -> None:
        around, surplus = self.around[holder], bytes(entry.get("surplus", []))
        dealers = [k for k in around if k in entry["roster"] and k in self.accepted[holder]]
        shares, hidden = b"", b""
        for dealer in dealers:
            row = self.rows(dealer, index)[self.around[dealer].index(holder)]
            shown = [0, *(1 + number for number in surplus)] if str(dealer) in entry["inputs"] else [1]
            hashes = self.hashes(dealer, holder, index, row)
            shares += self.shown_shares(entry, dealer, holder, [row[column] for column in shown])
            hidden += b"".join(each for column, each in enumerate(hashes) if column not in shown)
        given = (self.bitmap(dealers, around), shares, hidden)
        signed = (*fields, surplus, self.receipts[holder], *given)
        signature = self.signature(holder, 7, "reveal", *signed)
        self.expect(holder, ["server"], REVEAL, index, *given, signature)

    def shown_shares(self, entry: dict[str, Any], dealer: int, holder: int, shares: list[bytes]) -> bytes:
        """What a holder reveals of a dealer: its shares or, if it lies, another one in place of the first."""
        wrong = entry.get("wrong_shares", {}).get(str(holder), {}).get(str(dealer))
        if wrong is not None:
            need(bytes.fromhex(wrong) != shares[0], "a wrong share that is right")
            shares = [bytes.fromhex(wrong), *shares[1:]]
        return b"".join(shares)

    # --- inputs ---

    def masked_input(self, index: int, entry: dict[str, Any], member: int, fields: tuple[bytes, ...]) -> None:
        given, spec = entry["inputs"][str(member)], self.data["table"][entry["kind"]]
        layout, count = tables.layout(spec), entry.get("counts", {}).get(str(member), 1)
        terms = [(1, [*(given["residues"][part["name"]] for part in spec["parts"]), [count]])]
        peers, words = [k for k in self.around[member] if k in entry["roster"]], b""
        need(sorted(given["seeds"]) == sorted(map(str, peers)), f"sum {index} has masks with others")
        for peer in peers:
            seed = self.seed(index, bytes.fromhex(entry["context"]), member, peer)
            need(seed.hex() == given["seeds"][str(peer)], f"sum {index} has another seed")
            mask = keystream(seed, layout)
            terms.append((1 if member >= peer else -1, mask))
            words += b"" if peer == member else mask[-1][0].to_bytes(8, "little")
        if "promise" in spec:
            self.check_noise(index, entry, member)
        data = packed_sum(terms, layout)
        signed = (*fields, self.receipts[member], digest("masked parts", data[:-8]), data[-8:], words)
        signature = self.signature(member, 6, "masked input", *signed)
        self.expect(member, ["server"], MASKED_INPUT, index, data, words, signature)

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
        more = self.pair_secret(one, other, index) if self.hybrid else b""
        return agree(self.mask_secret(one, index), self.mask_secret(other, index), self.context, info, more)

    # --- totals ---

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
    gone = [*data["leavers"], *replay.convicted]
    replay.expect("server", [k for k in replay.ids if k not in gone], FAREWELL)
    need(replay.at == len(data["frames"]), "frames after the farewell")
