"""Full sessions with every frame and every secret: the plays of `plays`, played and written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scripts.vectors.describe import describe_policy, describe_registry, describe_table
from scripts.vectors.lying_clients import ShareLiar, new_recording_client
from scripts.vectors.play import NOW, SEED, SET_UP, FalseCount, Play, WrongShare
from scripts.vectors.recording_client import (
    RecordingClient,
    arrays,
    recorded_encapsulations,
    unmasked_total,
)
from secagg.client_memory import VolatileMemory
from secagg.events import Asked, Convicted, Outgoing, ServerEvent, SumAborted, SumReleased
from secagg.hashing import digest
from secagg.insecure_seeds import seeded_identity
from secagg.messages import decode
from secagg.query_context import Question
from secagg.session_params import SessionParams
from secagg.shamir import SHARE_BYTES
from secagg.sum_spec import Total
from secagg.testing import InsecureSeededServer
from secagg.topology import RingGraph
from secagg.transitions import ServerState


def new_server(play: Play) -> InsecureSeededServer:
    return InsecureSeededServer(
        seed=SEED,
        table=play.table,
        registry=play.registry,
        params=SessionParams(sums=play.sums, dropout=play.dropout, **play.limits, **play.graph),
        now=NOW,
    )


def new_client(play: Play, member: int, recorded: Mapping[str, Any]) -> RecordingClient:
    """A client of the play. `recorded` are the clients of its file, whose encapsulations it uses again."""
    return new_recording_client(
        play.lies.get(member),
        known=recorded_encapsulations(recorded, member),
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

    def __init__(self, play: Play, recorded: Mapping[str, Any]) -> None:
        self.play = play
        self.server = new_server(play)
        self.clients = {member: new_client(play, member, recorded) for member in play.members}
        self.frames: list[dict[str, Any]] = []
        self.sums: list[dict[str, Any]] = []
        self.secrets: dict[str, Any] = {}
        self._revealers: list[int] = []
        self._events: list[ServerEvent] = []

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
        while self.server.state is not ServerState.READY:  # keys go out, then envelopes; deposits come in
            self._close()
        for dealer, client in self.clients.items():
            if client.dealt:
                self.secrets[str(dealer)] |= {**self._dealt_by(client), **client.lies()}

    def _dealt_by(self, client: RecordingClient) -> dict[str, Any]:
        """Per sum, the shares in the order of their holders; those of noise per seed."""
        size = len(client.dealt[0]) // self.play.sums
        rows = [
            [_cut(text[k * size : (k + 1) * size]) for text in client.dealt] for k in range(self.play.sums)
        ]
        columns = [[list(column) for column in zip(*row, strict=True)] for row in rows]
        noise, made = [rest for _, _, *rest in columns], client.encapsulations()
        return {
            **({"encapsulations": made} if made else {}),
            "self_mask_shares": [column[0] for column in columns],
            "mask_key_shares": [column[1] for column in columns],
            **({"noise_shares": noise} if self.play.table.seeds else {}),
        }

    def _sum(self, index: int, kind: str, round_number: int, payload: bytes) -> None:
        step = self.server.ask(kind, payload, round_number=round_number)
        roster = list(step.outgoing[0].receivers)
        self._revealers, self._events = [], []
        self._send_down(step.outgoing, index)
        while self.server.state is not ServerState.READY:
            self._close(index)
        totals = [event.total for event in self._events if isinstance(event, SumReleased)]
        total = totals[0] if totals else None
        answered = {k: client for k, client in self.clients.items() if index in client.inputs}
        values, question = self.play.values[kind], next(iter(answered.values())).questions[index]
        self.sums.append(
            {
                "kind": kind,
                "round": round_number,
                "payload": payload.hex(),
                "roster": roster,
                "declined": list(self.play.declined.get(index, ())),
                "context": question.mask_context.hex(),
                "inputs": {
                    str(member): {"values": dict(values[member]), **client.inputs[index]}
                    for member, client in answered.items()
                },
                "revealers": self._revealers,
                **self._lies(index),
                **(_describe_noise(question, total) if question.spec.promise else {}),
                **self._verdicts(),
                "total": total and _describe_total(total, question, list(answered.values())),
            }
        )

    def _lies(self, index: int) -> dict[str, Any]:
        """False counts and wrong shares of a sum, by the clients that lie."""
        lies = {str(k): lie for k, lie in self.play.lies.items() if lie.index == index}
        counts = {k: lie.count for k, lie in lies.items() if isinstance(lie, FalseCount)}
        holders = {str(k): client for k, client in self.clients.items() if isinstance(client, ShareLiar)}
        wrong = {
            k: {str(lie.dealer): holders[k].wrong.hex()}
            for k, lie in lies.items()
            if isinstance(lie, WrongShare)
        }
        return {**({"counts": counts} if counts else {}), **({"wrong_shares": wrong} if wrong else {})}

    def _verdicts(self) -> dict[str, Any]:
        """Why there is no total, and who was convicted with which evidence."""
        errors = [type(event.error).__name__ for event in self._events if isinstance(event, SumAborted)]
        convicted = [event for event in self._events if isinstance(event, Convicted)]
        rows = [
            {"member": e.peer, "offence": e.evidence.offence, "evidence": e.evidence.encode().hex()}
            for e in convicted
            if e.evidence is not None
        ]
        return {**({"error": errors[0]} if errors else {}), **({"convicted": rows} if rows else {})}

    # --- the wire ---

    def _close(self, index: int = SET_UP) -> None:
        step = self.server.close_stage()
        self._events += step.events
        self._send_down(step.outgoing, index)

    def _send_down(self, outgoing: Iterable[Outgoing], index: int = SET_UP) -> None:
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
        step = client.receive(frame, now=NOW)
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
        self._events += self.server.receive(member, frame)

    def _note(self, sender: int | str, heard: list[Any], lost: list[int], frame: bytes) -> None:
        row = {"type": _name(frame), "from": sender, "to": heard, "lost": lost, "frame": frame.hex()}
        self.frames.append(row)


def _cut(shares: bytes) -> list[str]:
    return [shares[at : at + SHARE_BYTES].hex() for at in range(0, len(shares), SHARE_BYTES)]


def _describe_total(total: Total, question: Question, clients: list[RecordingClient]) -> dict[str, Any]:
    residues = unmasked_total(question, clients)
    values = {name: array.tolist() for name, array in total.parts.items()}
    return {"count": total.count, "invited": total.invited, "residues": residues, "values": values}


def _describe_noise(question: Question, total: Total | None) -> dict[str, Any]:
    """Which components were removed, and the seed of all rotations."""
    fields = (question.cohort.session, question.sum_index.to_bytes(4, "big"), question.spec.digest)
    surplus = question.surplus(total.count) if total else ()
    return {"rotation": digest("rotation seed", *fields).hex(), "surplus": list(surplus)}


def _name(frame: bytes) -> str:
    return type(decode(frame, sender="server", limit=1 << 20)).__name__


def transcript(play: Play, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The whole vector of one play. `recorded` are the clients of its file, if there is one."""
    recording = Recording(play, recorded)
    recording.record()
    cohort = recording.server._cohort
    return {
        "about": play.about,
        "seed": SEED.hex(),
        "trust": str(play.trust),
        "key_agreement": str(play.key_agreement),
        "members": list(play.members),
        **_describe_ring(recording.server, named=play.graph.get("name_members", False)),
        "threshold": cohort.threshold,
        "session_sums": play.sums,
        "dropout": play.dropout,
        "policy": describe_policy(play.policy),
        "table": describe_table(play.table),
        "registry": describe_registry(play.registry) or {"version": 0, "expires": 0, "members": {}},
        "session": cohort.session.hex(),
        "clients": recording.secrets,
        "sums": recording.sums,
        "leavers": list(play.leavers),
        "frames": recording.frames,
    }


def _describe_ring(server: InsecureSeededServer, *, named: bool) -> dict[str, Any]:
    """Who stands next to whom; nothing on a complete graph."""
    graph = server._topology.graph
    if not isinstance(graph, RingGraph):
        return {}
    order = [server._cohort.ids[position] for position in graph._order.tolist()]
    return {"neighbours": graph.neighbours, "order": order, "named": named}
