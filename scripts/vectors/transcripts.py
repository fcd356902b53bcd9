"""Full sessions with every frame and every secret: the plays of `plays`, played and written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scripts.vectors.describe import describe_policy, describe_registry, describe_table
from scripts.vectors.plays import SEED, Play
from secagg.client import Answer
from secagg.events import Asked, Outgoing, ServerStep, SumReleased
from secagg.graph import RingGraph
from secagg.keys import Agreement, Random, pair_info, self_mask_seed
from secagg.masks import KeyStream
from secagg.memory import VolatileMemory
from secagg.messages import decode
from secagg.question import Question
from secagg.shamir import SHARE_BYTES
from secagg.spec import Total
from secagg.testing.seeded import InsecureSeededClient, InsecureSeededServer, seeded_identity
from secagg.transitions import ServerState


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
        """The seed of the mask shared with each client of the roster that is a neighbour; under our own id,
        of the self mask.
        """
        session, context = question.cohort.session, question.mask_context
        agreement = Agreement(self._vault._mask_keys[question.sum_index])
        secret = self._vault._self_masks[question.sum_index]
        own = self_mask_seed(secret, session=session, context=context, owner=self.member)
        seeds = {}
        around = [position for position in question.cohort.neighbourhood if position in question.roster]
        for peer in (question.cohort.adverts[position] for position in around):
            info = pair_info(context, self.member, peer.member)
            pair = agreement.derive(peer.mask_keys[question.sum_index], salt=session, info=info)
            seeds[str(peer.member)] = (own if peer.member == self.member else pair).hex()
        return seeds


def new_server(play: Play) -> InsecureSeededServer:
    return InsecureSeededServer(
        seed=SEED,
        table=play.table,
        sums=play.sums,
        dropout=play.dropout,
        registry=play.registry,
        **play.limits,
        **play.graph,
    )


def new_client(play: Play, member: int) -> RecordingClient:
    return RecordingClient(
        seed=SEED,
        member=member,
        table=play.table,
        policy=play.policy,
        memory=VolatileMemory(),
        identity=seeded_identity(SEED, member) if play.registry else None,
        registry=play.registry,
    )


class Recording:
    """One session, played and written down."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.server = new_server(play)
        self.clients = {member: new_client(play, member) for member in play.members}
        self.frames: list[dict[str, Any]] = []
        self.sums: list[dict[str, Any]] = []
        self.secrets: dict[str, Any] = {}
        self._revealers: list[int] = []

    def record(self) -> None:
        self._set_up()
        for index, (kind, round_number, payload) in enumerate(self.play.queries):
            self._sum(index, kind, round_number, payload)
        for member in self.play.leavers:
            self._send_up(member, self.clients[member].leave())
        self._send_down(self.server.end().outgoing)

    def _set_up(self) -> None:
        self._send_down([Outgoing(self.play.members, self.server.invitation)])
        self.secrets = {str(member): client.secrets() for member, client in self.clients.items()}
        self._close()  # the key list goes out, shares come in
        self._close()  # the envelopes are delivered
        for dealer in self.play.members:
            self.secrets[str(dealer)] |= self._shares_of(dealer)

    def _shares_of(self, dealer: int) -> dict[str, list[list[str]]]:
        """Per sum, the shares in the order of their holders."""
        cohort = self.clients[dealer]._cohort
        holders = [self.clients[cohort.ids[position]] for position in cohort.neighbourhood]
        rows = [[holder.held_shares(k, dealer) for holder in holders] for k in range(self.play.sums)]
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
                "declined": list(self.play.declined.get(index, ())),
                "context": next(c.contexts[index] for c in self.clients.values() if index in c.contexts),
                "inputs": {
                    member: {"values": dict(self.play.values[kind][int(member)]), **row}
                    for member, row in inputs.items()
                },
                "revealers": self._revealers,
                "total": total and self._describe_total(total, kind, inputs.values()),
            }
        )

    def _describe_total(self, total: Total, kind: str, inputs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        residues = {}
        for part in self.play.table[kind].parts:
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
            unreached = self.play.lost.get((index, _name(packet.frame)), ())
            lost = [member for member in unreached if member in packet.receivers]
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
        if member in self.play.silent.get(index, ()):
            return ()
        if member in self.play.declined.get(index, ()):
            return (client.decline(index),)
        return (client.answer(index, arrays(self.play.values[kind][member])).frame,)

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


def transcript(play: Play) -> dict[str, Any]:
    """The whole vector of one play."""
    recording = Recording(play)
    recording.record()
    cohort = recording.server._cohort
    return {
        "about": play.about,
        "seed": SEED.hex(),
        "trust": str(play.trust),
        "members": list(play.members),
        **_describe_ring(recording.server),
        "threshold": cohort.threshold,
        "session_sums": play.sums,
        "dropout": play.dropout,
        "policy": describe_policy(play.policy),
        "table": describe_table(play.table),
        "registry": describe_registry(play.registry) or {"version": 0, "members": {}},
        "session": cohort.session.hex(),
        "clients": recording.secrets,
        "sums": recording.sums,
        "leavers": list(play.leavers),
        "frames": recording.frames,
    }


def _describe_ring(server: InsecureSeededServer) -> dict[str, Any]:
    """Who stands next to whom; nothing on a complete graph."""
    graph = server._topology.graph
    if not isinstance(graph, RingGraph):
        return {}
    order = [server._cohort.ids[position] for position in graph._order.tolist()]
    return {"neighbours": graph.neighbours, "order": order}
