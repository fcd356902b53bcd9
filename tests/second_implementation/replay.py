"""A transcript, replayed: honest machines rebuild its frames, which are compared with the recorded ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.second_implementation import crypto
from tests.second_implementation.client import Client, Secrets
from tests.second_implementation.crypto import Signer
from tests.second_implementation.encoding import parse
from tests.second_implementation.evidence import Court
from tests.second_implementation.graph import Policy
from tests.second_implementation.liar import Liar, Lies
from tests.second_implementation.noise import component, rotation_seed, rounds_to, seeds_of
from tests.second_implementation.records import registry_digest
from tests.second_implementation.server import Sent, Server, Setting
from tests.second_implementation.specs import Residues, encodes, read_table
from tests.second_implementation.unmask import Total

Listed = dict[str, Any]


def hexed(items: Sequence[str]) -> list[bytes]:
    """Byte strings of a JSON list."""
    return [bytes.fromhex(item) for item in items]


def read_secrets(listed: Listed) -> Secrets:
    """The one-time secrets of a client, and the rows that it deals by place."""
    # A client that did not receive the keys of the others dealt no shares.
    own, dealt = listed.get("self_mask_shares", []), listed.get("mask_key_shares", [])
    seeds = listed.get("noise_shares", [[] for _ in own])
    rows = [
        [[bytes.fromhex(column[place]) for column in (own[k], dealt[k], *seeds[k])] for k in range(len(own))]
        for place in range(len(own[0]) if own else 0)
    ]
    return Secrets(
        channel=bytes.fromhex(listed["channel"]),
        dealt=hexed(listed["mask_keys"]),
        self_masks=hexed(listed["self_masks"]),
        seeds=[hexed(per_sum) for per_sum in listed.get("noise_seeds", [[] for _ in listed["mask_keys"]])],
        rows=rows,
        kem_seed=bytes.fromhex(listed.get("kem_seed", "")),
        encapsulations={
            int(receiver): (bytes.fromhex(item["secret"]), bytes.fromhex(item["ciphertext"]))
            for receiver, item in listed.get("encapsulations", {}).items()
        },
    )


def recorded_signer(public: bytes, recorded: Sequence[bytes]) -> Signer:
    """A signer without a secret: it finds the recorded signature that is valid for what it should sign.

    Ed25519 is deterministic, so an honest signer made just this one.
    """

    def sign(purpose: str, fields: Sequence[bytes]) -> bytes:
        found = [s for s in recorded if crypto.verifies(public, purpose, fields, s)]
        assert found, f"no signature in the transcript is valid for this {purpose}"
        return found[0]

    return sign


def signatures_in(data: bytes) -> list[bytes]:
    """The signatures in a frame of a client."""
    message = parse(data)
    if message.name == "Advertisement":
        return [message.data(0)[-64:]]
    return [value for value in message.fields if isinstance(value, bytes) and len(value) == 64]


class Replay:
    """One transcript with its machines."""

    def __init__(self, listed: Listed) -> None:
        self.listed = listed
        self.table = read_table(listed["table"])
        members = listed["registry"]["members"]
        self.keys = {int(client): bytes.fromhex(key) for client, key in members.items()}
        self.signed = listed["trust"] == "malicious_server"
        self.clients = {int(i): self._client(int(i), item) for i, item in listed["clients"].items()}
        self.queues: dict[int, list[bytes]] = {client: [] for client in self.clients}
        self.outbox: list[Sent] = []
        self.asked = 0
        self.counts: Counter[str] = Counter()
        self.server = Server(self._setting(), self.clients)

    # --- Reading the transcript

    def _client(self, client: int, listed: Listed) -> Client:
        machine = Liar(client, read_secrets(listed), self.table, self._signer(client), self.keys)
        machine.lies = self._lies(client, listed)
        return machine

    def _lies(self, client: int, listed: Listed) -> Lies:
        sums, name = enumerate(self.listed["sums"]), str(client)
        return Lies(
            decoys={int(k): bytes.fromhex(secret) for k, secret in listed.get("decoys", {}).items()},
            counts={k: item["counts"][name] for k, item in sums if name in item.get("counts", {})},
            wrong_shares={
                k: {int(i): bytes.fromhex(share) for i, share in item["wrong_shares"].get(name, {}).items()}
                for k, item in enumerate(self.listed["sums"])
                if "wrong_shares" in item
            },
            unreadable=listed.get("unreadable", []),
        )

    def _signer(self, client: int) -> Signer:
        if not self.signed:
            return crypto.unsigned
        own = [bytes.fromhex(f["frame"]) for f in self.listed["frames"] if f["from"] == client]
        recorded = [signature for data in own for signature in signatures_in(data)]
        return recorded_signer(self.keys[client], recorded)

    def _setting(self) -> Setting:
        listed, policy = self.listed, self.listed["policy"]
        invitation = parse(bytes.fromhex(listed["frames"][0]["frame"]))
        registry = listed["registry"]
        digest = registry_digest(registry["version"], registry["expires"], self.keys) if self.signed else b""
        return Setting(
            trust=listed["trust"],
            agreement=listed["key_agreement"],
            sums=listed["session_sums"],
            policy=Policy(
                signed=self.signed,
                corrupt=policy["corrupt"],
                min_cohort=policy["min_cohort"],
                min_contributors=policy["min_contributors"],
                security_bits=policy.get("security_bits", 40),
                dropout=listed["dropout"],
            ),
            table=self.table,
            registry=digest,
            nonce=invitation.data(5),
            ring="order" in listed,
            order=tuple(listed.get("order", ())),
            named=listed.get("named", False),
        )

    # --- Replaying

    def run(self) -> None:
        """Rebuild and compare everything."""
        for entry in self.listed["frames"]:
            data = bytes.fromhex(entry["frame"])
            assert parse(data).name == entry["type"]
            if entry["from"] == "server":
                self._from_server(entry, data)
            else:
                self._from_client(entry, data)
            self.counts[entry["type"]] += 1
        assert not self.outbox
        assert not any(self.queues.values())
        self._check_session()
        self._check_totals()
        self._check_convictions()

    def _check_session(self) -> None:
        """The figures that the server chose by itself."""
        server, listed = self.server, self.listed
        assert server.session.hex() == listed["session"]
        assert list(server.cohort.ids) == listed["members"]
        assert server.cohort.t == listed["threshold"]
        assert server.cohort.d == listed.get("neighbours", server.cohort.n - 1)

    def _from_server(self, entry: Listed, data: bytes) -> None:
        if not self.outbox:
            self._advance(entry["type"])
        sent = self.outbox.pop(0)
        assert sent.frame == data, f"another {entry['type']}"
        assert sorted(sent.receivers) == sorted(entry["to"] + entry["lost"]), entry["type"]
        for receiver in entry["to"]:
            self.queues[receiver] += self._deliver(receiver, entry["type"], data)

    def _advance(self, name: str) -> None:
        """Make the server send the next frame: it opens, asks, ends, or closes a stage."""
        if name == "Invitation":
            self.outbox = self.server.invite()
            return
        while self.server.stage != "ready" and not self.outbox:
            self.outbox = self.server.close()
        if self.outbox:
            return
        if name == "Query":
            item = self.listed["sums"][self.asked]
            self.asked += 1
            self.outbox = self.server.ask(item["kind"], item["round"], bytes.fromhex(item["payload"]))
        else:
            self.outbox = self.server.end()

    def _deliver(self, receiver: int, name: str, data: bytes) -> list[bytes]:
        client = self.clients[receiver]
        if name == "Query":
            return self._answer(client, data)
        handlers: dict[str, Callable[[bytes], list[bytes]]] = {
            "Invitation": client.invited,
            "KeyList": client.key_list,
            "Neighbours": client.neighbours,
            "Delivery": client.delivered,
            "Survivors": client.survived,
            "Confirmations": client.confirmed,
        }
        return handlers[name](data) if name in handlers else []

    def _from_client(self, entry: Listed, data: bytes) -> None:
        sender = entry["from"]
        if entry["type"] == "Leave":
            self.queues[sender].append(self.clients[sender].leave())
        assert self.queues[sender], f"an unexpected {entry['type']}"
        assert self.queues[sender].pop(0) == data, f"another {entry['type']}"
        if not entry["lost"]:
            self.server.receive(sender, data)

    # --- Inputs and totals

    def _answer(self, client: Client, data: bytes) -> list[bytes]:
        item = self.listed["sums"][self.asked - 1]
        own = item["inputs"].get(str(client.id))
        frames = client.asked(data, own and own["residues"], client.id in item["declined"])
        assert client.sum.context.hex() == item["context"]
        if own is not None:
            self._check_input(client, item, own)
        return frames

    def _check_input(self, client: Client, item: Listed, own: Listed) -> None:
        """The input of a client follows from its values, as far as it is not random."""
        spec = client.sum.spec
        assert {str(peer): seed.hex() for peer, seed in client.seeds().items()} == own["seeds"]
        seed = rotation_seed(client.network.session, client.sum.k, spec)
        for index, part in enumerate(spec.parts):
            values = own["values"][part.name]
            if part.noisy:
                assert rounds_to(part, index, seed, values, own["rounded"][part.name])
            else:
                assert encodes(part, client.network.n, values, own["residues"][part.name])
        if spec.promise is not None:
            assert seed.hex() == item["rotation"]
            assert self._with_noise(client, item, own) == own["residues"]

    def _with_noise(self, client: Client, item: Listed, own: Listed) -> Residues:
        """The residues of a noisy input: component 0 is the client's own randomness, the others are drawn."""
        spec = client.sum.spec
        streams = client.noise_streams()[: seeds_of(spec)]
        assert [stream.hex() for stream in streams] == own["noise_streams"]
        parts = {p.name: own["rounded" if p.noisy else "residues"][p.name] for p in spec.parts}
        spec.add(parts, own["noise"], 1)
        for number, stream in enumerate(streams, start=1):
            spec.add(parts, component(spec, len(item["roster"]), number, stream), 1)
        return parts

    def _check_convictions(self) -> None:
        """The convictions of each sum and their evidence, which also convinces somebody else."""
        registry, liars = self.server.setting.registry, self.server.liars()
        found: dict[int, list[Listed]] = {k: [] for k in range(self.asked)}
        for k, conviction, evidence in self.server.convictions:
            assert evidence is not None
            assert Court(self.keys, registry, self.table, liars).proves(evidence)
            proof = evidence.encoded().hex()
            found[k].append({"member": conviction.client, "offence": conviction.offence, "evidence": proof})
        for k, item in enumerate(self.listed["sums"]):
            assert found[k] == item.get("convicted", [])

    def _check_totals(self) -> None:
        sums = self.listed["sums"]
        assert self.asked == len(sums) == len(self.server.totals)
        for item, total in zip(sums, self.server.totals, strict=True):
            expected = item["total"]
            if expected is None:
                assert total == item["error"]
            else:
                assert isinstance(total, Total)
                assert (total.contributors, total.invited) == (expected["count"], expected["invited"])
                assert total.residues == expected["residues"]
                for name, values in expected["values"].items():
                    assert all(map(_close, total.values[name], values))


def _close(one: float, other: float) -> bool:
    """Whether two numbers are equal up to the order in which floats are added (5.6)."""
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)
