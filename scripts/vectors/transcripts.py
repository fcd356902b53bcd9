"""Full sessions of four clients, one per trust level, with every frame and every secret.

The same play for both: all four answer the first sum, and one of them does not hear who survived; one never
hears the second query, which opens a group; the third goes on with the group of three; of the fourth, only
two send inputs, so it is closed; then one client leaves and the server says farewell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from scripts.vectors.describe import describe_policy, describe_registry, describe_table
from secagg.client import Answer
from secagg.events import Asked, Outgoing, ServerStep, SumReleased
from secagg.keys import Agreement, Random, pair_info, self_mask_seed
from secagg.masks import KeyStream
from secagg.memory import VolatileMemory
from secagg.messages import decode
from secagg.policy import Policy
from secagg.question import Question
from secagg.registry import Registry
from secagg.shamir import SHARE_BYTES
from secagg.spec import L2, Count, LInf, Part, Residue, SumSpec, Table, Total
from secagg.testing.seeded import (
    InsecureSeededClient,
    InsecureSeededServer,
    seeded_identity,
    seeded_registry,
)
from secagg.thresholds import Trust
from secagg.transitions import ServerState

SEED: Final = b"transcript"
MEMBERS: Final = (3, 7, 300, 70000)  # ids of one, two and three significant bytes
CORRUPT: Final = 1
SUMS: Final = 4
DROPOUT: Final = 0.25

TABLE: Final = Table(
    {
        "update": SumSpec(
            parts=(
                Part(name="direction", size=5, bits=20, bound=L2(1.5)),
                Part(name="extremes", size=3, bits=12, bound=LInf(0.25)),
                Part(name="examples", size=2, bits=9, bound=Count(80)),
                Part(name="parity", size=11, bits=1, bound=Residue()),
                Part(name="checksum", size=2, bits=64, bound=Residue()),
            )
        ),
        "center": SumSpec(
            parts=(
                Part(name="residual", size=3, bits=33, bound=L2(2.0)),
                Part(name="weight", size=1, bits=17, bound=LInf(4.0)),
            ),
            times=2,
            group="median",
        ),
    }
)

# (kind, round, payload). The payload stands for a broadcast model.
QUERIES: Final = (
    ("update", 0, b"a model"),
    ("center", 0, b"a center"),
    ("center", 0, b"a better center"),
    ("update", 1, bytes(range(40))),
)
# Frames that get lost on their way: (sum, type of frame) -> receivers.
LOST: Final[Mapping[tuple[int, str], tuple[int, ...]]] = {
    (0, "Survivors"): (300,),
    (1, "Query"): (7,),
}
DECLINED: Final = {3: (7,)}
SILENT: Final = {3: (300,)}
LEAVERS: Final = (70000,)

# The second client's direction exceeds its bound and is clipped, and so is one of its extremes.
_UPDATES: Final[Mapping[int, Mapping[str, list[Any]]]] = {
    3: {
        "direction": [0.5, -0.25, 0.125, -1.0, 0.0],
        "extremes": [0.1, -0.2, 0.25],
        "examples": [80, 0],
        "parity": [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1],
        "checksum": [2**64 - 1, 1],
    },
    7: {
        "direction": [3.0, -4.0, 0.0, 0.0, 1e-3],
        "extremes": [-0.3, 0.0, 1e-9],
        "examples": [7, 3],
        "parity": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "checksum": [2**63, 2**32],
    },
    300: {
        "direction": [-0.1, -0.2, -0.3, -0.4, -0.5],
        "extremes": [-0.25, -0.25, -0.25],
        "examples": [1, 79],
        "parity": [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        "checksum": [123456789012345678, 0],
    },
    70000: {
        "direction": [0.0, 0.0, 0.0, 0.0, 0.0],
        "extremes": [0.03, 0.02, 0.01],
        "examples": [0, 0],
        "parity": [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0],
        "checksum": [5, 2**64 - 5],
    },
}
_CENTERS: Final[Mapping[int, Mapping[str, list[Any]]]] = {
    3: {"residual": [-1.0, -0.5, 0.25], "weight": [1.0]},
    300: {"residual": [-0.75, 0.5, 1e-6], "weight": [3.999]},
    70000: {"residual": [0.0, -1.25, -1.5], "weight": [0.001]},
}


def values_for(member: int, kind: str) -> Mapping[str, list[Any]]:
    """What a client answers; the same vector for every sum of a group."""
    return (_UPDATES if kind == "update" else _CENTERS)[member]


def arrays(values: Mapping[str, list[Any]]) -> dict[str, ArrayLike]:
    """`values` for a machine: left to itself, numpy turns a mix of small and large integers into floats."""
    whole = {name: all(isinstance(value, int) for value in row) for name, row in values.items()}
    return {name: np.array(row, np.uint64 if whole[name] else np.float64) for name, row in values.items()}


class Drawn:
    """Randomness that remembers what it gave last."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.last = b""

    def __call__(self, count: int) -> bytes:
        self.last = self._random(count)
        return self.last


class RecordingClient(InsecureSeededClient):
    """Notes its secrets when they are fresh, and its residues as they were before they were masked."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._random = self._drawn = Drawn(self._random)
        self.inputs: dict[int, dict[str, Any]] = {}
        self.contexts: dict[int, str] = {}

    def secrets(self) -> dict[str, Any]:
        """The one-time secrets of the session; they exist from the invitation to their first use."""
        vault = self._vault
        return {
            "channel": vault._channel.hex(),
            "mask_keys": [key.hex() for key in vault._mask_keys.values()],
            "self_masks": [seed.hex() for seed in vault._self_masks.values()],
        }

    def held_shares(self, sum_index: int, dealer: int) -> bytes:
        return self._vault._held[sum_index][self._cohort.position[dealer]]

    def answer(self, sum_index: int, values: Mapping[str, ArrayLike]) -> Answer:
        question = self._question
        assert question is not None
        seeds = self._seeds(question)
        answer = super().answer(sum_index, values)
        # The same values, rounded once more with the randomness that was drawn for it, are not masked yet.
        *residues, _count = question.encoding.encode(values, KeyStream(self._drawn.last)).residues
        parts = zip(question.spec.parts, residues, strict=True)
        self.contexts[sum_index] = question.mask_context.hex()
        self.inputs[sum_index] = {"residues": {p.name: row.tolist() for p, row in parts}, "seeds": seeds}
        return answer

    def _seeds(self, question: Question) -> dict[str, str]:
        """The seed of the mask shared with each client of the roster; under our own id, of the self mask."""
        session, context = question.cohort.session, question.mask_context
        agreement = Agreement(self._vault._mask_keys[question.sum_index])
        secret = self._vault._self_masks[question.sum_index]
        own = self_mask_seed(secret, session=session, context=context, owner=self.member)
        seeds = {}
        for peer in (question.cohort.adverts[position] for position in question.roster):
            info = pair_info(context, self.member, peer.member)
            pair = agreement.derive(peer.mask_keys[question.sum_index], salt=session, info=info)
            seeds[str(peer.member)] = (own if peer.member == self.member else pair).hex()
        return seeds


def policy_for(trust: Trust) -> Policy:
    return Policy(
        trust=trust,
        corrupt=CORRUPT,
        min_cohort=CORRUPT + 2,
        max_cohort=6,
        min_contributors=CORRUPT + 2,
        max_sums=SUMS,
        unnoised_sums=10,
    )


def registry_for(trust: Trust) -> Registry | None:
    """One identity more than takes part."""
    return seeded_registry(SEED, [*MEMBERS, 70001], version=2) if trust is Trust.MALICIOUS else None


def new_server(trust: Trust) -> InsecureSeededServer:
    return InsecureSeededServer(
        seed=SEED,
        table=TABLE,
        trust=trust,
        sums=SUMS,
        corrupt=CORRUPT,
        dropout=DROPOUT,
        min_cohort=CORRUPT + 2,
        max_cohort=6,
        min_contributors=CORRUPT + 2,
        registry=registry_for(trust),
    )


def new_client(trust: Trust, member: int) -> RecordingClient:
    return RecordingClient(
        seed=SEED,
        member=member,
        table=TABLE,
        policy=policy_for(trust),
        memory=VolatileMemory(),
        identity=seeded_identity(SEED, member) if trust is Trust.MALICIOUS else None,
        registry=registry_for(trust),
    )


class Recording:
    """One session, played and written down."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.server = new_server(trust)
        self.clients = {member: new_client(trust, member) for member in MEMBERS}
        self.frames: list[dict[str, Any]] = []
        self.sums: list[dict[str, Any]] = []
        self.secrets: dict[str, Any] = {}
        self._revealers: list[int] = []

    def play(self) -> None:
        self._set_up()
        for index, (kind, round_number, payload) in enumerate(QUERIES):
            self._sum(index, kind, round_number, payload)
        for member in LEAVERS:
            self._send_up(member, self.clients[member].leave())
        self._send_down(self.server.end().outgoing)

    def _set_up(self) -> None:
        self._send_down([Outgoing(MEMBERS, self.server.invitation)])
        self.secrets = {str(member): client.secrets() for member, client in self.clients.items()}
        self._close()  # the key list goes out, shares come in
        self._close()  # the envelopes are delivered
        for dealer in MEMBERS:
            self.secrets[str(dealer)] |= self._shares_of(dealer)

    def _shares_of(self, dealer: int) -> dict[str, list[list[str]]]:
        """Per sum, the shares in the order of their holders."""
        rows = [[c.held_shares(k, dealer) for c in self.clients.values()] for k in range(SUMS)]
        return {
            "self_mask_shares": [[both[:SHARE_BYTES].hex() for both in row] for row in rows],
            "mask_key_shares": [[both[SHARE_BYTES:].hex() for both in row] for row in rows],
        }

    def _sum(self, index: int, kind: str, round_number: int, payload: bytes) -> None:
        step = self.server.ask(kind, payload, round_number=round_number)
        roster = list(step.outgoing[0].receivers)
        self._revealers = []
        self._send_down(step.outgoing, index)
        total: Total | None = None
        while self.server.state is not ServerState.READY:
            released = [e for e in self._close(index).events if isinstance(e, SumReleased)]
            total = released[0].total if released else None
        inputs = {str(k): c.inputs[index] for k, c in self.clients.items() if index in c.inputs}
        self.sums.append(
            {
                "kind": kind,
                "round": round_number,
                "payload": payload.hex(),
                "roster": roster,
                "declined": list(DECLINED.get(index, ())),
                "context": next(c.contexts[index] for c in self.clients.values() if index in c.contexts),
                "inputs": {
                    member: {"values": dict(values_for(int(member), kind)), **row}
                    for member, row in inputs.items()
                },
                "revealers": self._revealers,
                "total": total and self._describe_total(total, kind, inputs.values()),
            }
        )

    def _describe_total(self, total: Total, kind: str, inputs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        residues = {}
        for part in TABLE[kind].parts:
            columns = zip(*(row["residues"][part.name] for row in inputs), strict=True)
            residues[part.name] = [sum(column) % (1 << part.bits) for column in columns]
        values = {name: array.tolist() for name, array in total.parts.items()}
        return {"count": total.count, "invited": total.invited, "residues": residues, "values": values}

    # --- the wire ---

    def _close(self, index: int = -1) -> ServerStep:
        step = self.server.close_stage()
        self._send_down(step.outgoing, index)
        return step

    def _send_down(self, outgoing: Iterable[Outgoing], index: int = -1) -> None:
        """Deliver all frames of a stage, then hand the replies up in the order of ids."""
        replies: list[tuple[int, bytes]] = []
        for packet in outgoing:
            lost = [k for k in LOST.get((index, _name(packet.frame)), ()) if k in packet.receivers]
            heard = [member for member in packet.receivers if member not in lost]
            self._note("server", heard, lost, packet.frame)
            for member in heard:
                replies += [(member, frame) for frame in self._turn(member, packet.frame)]
        for member, frame in replies:
            self._send_up(member, frame)

    def _turn(self, member: int, frame: bytes) -> tuple[bytes, ...]:
        client = self.clients[member]
        step = client.receive(frame)
        asked = [event for event in step.events if isinstance(event, Asked)]
        if not asked:
            return step.frames
        index, kind = asked[0].sum_index, asked[0].kind
        if member in SILENT.get(index, ()):
            return ()
        if member in DECLINED.get(index, ()):
            return (client.decline(index),)
        return (client.answer(index, arrays(values_for(member, kind))).frame,)

    def _send_up(self, member: int, frame: bytes) -> None:
        self._note(member, ["server"], [], frame)
        if _name(frame) == "Reveal":
            self._revealers.append(member)
        self.server.receive(member, frame)

    def _note(self, sender: int | str, heard: list[Any], lost: list[int], frame: bytes) -> None:
        row = {"type": _name(frame), "from": sender, "to": heard, "lost": lost, "frame": frame.hex()}
        self.frames.append(row)


def _name(frame: bytes) -> str:
    return type(decode(frame, sender="server", limit=1 << 20)).__name__


def transcript(trust: Trust) -> dict[str, Any]:
    """The whole vector of one trust level."""
    recording = Recording(trust)
    recording.play()
    cohort = recording.clients[MEMBERS[0]]._cohort
    return {
        "about": f"A session of four seeded clients under {trust}; see README.md.",
        "seed": SEED.hex(),
        "trust": str(trust),
        "members": list(MEMBERS),
        "threshold": cohort.threshold,
        "session_sums": SUMS,
        "dropout": DROPOUT,
        "policy": describe_policy(policy_for(trust)),
        "table": describe_table(TABLE),
        "registry": describe_registry(registry_for(trust)) or {"version": 0, "members": {}},
        "session": cohort.session.hex(),
        "clients": recording.secrets,
        "sums": recording.sums,
        "leavers": list(LEAVERS),
        "frames": recording.frames,
    }
