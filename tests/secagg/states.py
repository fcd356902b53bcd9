"""Both machines in every state they have, and honest frames to try on them: one recorded session."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from secagg import messages as m
from secagg.client import ClientMachine
from secagg.cohort_members import invitation_digest, pack_neighbours
from secagg.errors import PeerError
from secagg.hybrid_keys import KeyAgreement
from secagg.message_records import Format
from secagg.server import ServerMachine
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.testing.faulty_wire import Packet
from secagg.transitions import ClientState, ServerState
from secagg.trust_levels import Trust
from tests.secagg.share_log import LoggedWire
from tests.secagg.snapshots import insecure_copy
from tests.secagg.truth import Truth, decoded, seeded_machines

MEMBERS = (2, 3, 5, 7, 11)
RING_MEMBERS = (*MEMBERS, 13, 17, 19, 23)
TARGET = 5  # the client whose states are kept
SUMS = 3
SIZE = len(RING_MEMBERS)
TABLE = Table({"sum": SumSpec(parts=(Part(name="x", size=SIZE, bits=20, bound=Residue()),), times=2)})


class SessionKind(NamedTuple):
    """What makes sessions differ: the trust level, the graph and the key agreement. Clients on a ring compare
    the clients of their sums, and so are told the ids of all."""

    trust: Trust
    ring: bool = False
    hybrid: bool = False


@dataclass
class Recording:
    """What was kept of one session.

    `clients`, `servers`  a machine in each state; copy before use. A server's stage is half full.
    `deserted`            servers to which nobody came, which failed or ended without ever having a cohort.
    `opened`              one server whose set-up is over, before its first sum.
    `to_client`           (state, message type) -> a frame that the client accepted in that state.
    `to_server`           (state, message type) -> (sender, frame) that the server accepted in that stage.
    `frames`              every frame of the session, and of another one.
    """

    kind: SessionKind
    seed: bytes
    clients: dict[ClientState, ClientMachine] = field(default_factory=dict)
    servers: dict[ServerState, ServerMachine] = field(default_factory=dict)
    deserted: list[ServerMachine] = field(default_factory=list)
    opened: list[ServerMachine] = field(default_factory=list)
    to_client: dict[tuple[ClientState, type[m.Message]], bytes] = field(default_factory=dict)
    to_server: dict[tuple[ServerState, type[m.Message]], tuple[int, bytes]] = field(default_factory=dict)
    frames: list[bytes] = field(default_factory=list)

    @property
    def trust(self) -> Trust:
        return self.kind.trust

    @property
    def agreement(self) -> KeyAgreement:
        return KeyAgreement.HYBRID if self.kind.hybrid else KeyAgreement.X25519

    @property
    def members(self) -> tuple[int, ...]:
        return RING_MEMBERS if self.kind.ring else MEMBERS

    @property
    def form(self) -> Format:
        return Format(SUMS, signed=self.trust is Trust.MALICIOUS, agreement=self.agreement)

    @property
    def limit(self) -> int:
        """The largest frame that either side accepts."""
        client, server = self.clients[ClientState.READY], self.servers[ServerState.READY]
        return max(client.frame_limit, server.frame_limit)

    def run(self) -> None:
        truth = Truth(self.members, TABLE, SIZE)
        server, clients = seeded_machines(
            members=self.members,
            table=TABLE,
            trust=self.trust,
            dropout=0.2,
            sums=SUMS,
            seed=self.seed,
            max_cohort=64,
            max_query_bytes=1 << 17,
            graph="ring" if self.kind.ring else "complete",
            key_agreement=self.agreement,
            name_members=self.kind.ring,
            min_difference=1 if self.kind.ring else 0,
            security_bits=8,
            liveness_bits=4,
        )
        self.deserted = [insecure_copy(server), insecure_copy(server)]
        self.deserted[0].close_stage()
        self.deserted[1].end()
        self.frames.append(m.Lost(invitation_digest(server.invitation), b"\x01").encode())
        wire = LoggedWire(server, clients, truth.answer)
        self._keep(wire)
        wire.invite()
        self._finish(wire)
        self.opened.append(insecure_copy(wire.server))
        for index in range(2):
            wire.begin("sum", b"%d" % index, round_number=index)
            self._finish(wire)
        self._other_moves(wire)
        self.frames += dict.fromkeys(packet.frame for packet in wire.sent)

    def _finish(self, wire: LoggedWire) -> None:
        self._drain(wire)
        while wire.server.state not in (ServerState.READY, ServerState.FAILED):
            wire.close_stage()
            self._keep(wire)
            self._drain(wire)

    def _drain(self, wire: LoggedWire) -> None:
        """All frames of the server first, so that a stage fills slowly."""
        while wire.waiting:
            packet = min(wire.waiting, key=lambda waiting: (waiting.receiver == "server", waiting.number))
            wire.waiting.remove(packet)
            self._note(wire, packet)
            wire.deliver(packet)
            self._keep(wire)

    def _note(self, wire: LoggedWire, packet: Packet) -> None:
        message = decoded(packet.frame)
        assert message is not None
        if packet.receiver == TARGET:
            client = wire.clients[TARGET]
            self.to_client.setdefault((client.state, type(message)), packet.frame)
            if isinstance(message, m.Query):
                asked = insecure_copy(client)
                asked.receive(packet.frame)
                self.clients.setdefault(ClientState.ASKED, asked)
        elif isinstance(packet.sender, int):
            self.to_server[wire.server.state, type(message)] = packet.sender, packet.frame

    def _keep(self, wire: LoggedWire) -> None:
        client, server = wire.clients[TARGET], wire.server
        if client.state not in self.clients:
            self.clients[client.state] = insecure_copy(client)
        if len(server._attendance.answered) <= 2:
            self.servers[server.state] = insecure_copy(server)

    def _other_moves(self, wire: LoggedWire) -> None:
        """States and moves that an honest session in which nobody drops does not come to."""
        self.clients[ClientState.ENDED] = insecure_copy(wire.clients[TARGET])
        self.clients[ClientState.ENDED].leave()
        self.clients[ClientState.FAILED] = failed = insecure_copy(wire.clients[TARGET])
        try:
            failed.receive(b"")
        except PeerError:
            assert failed.state is ClientState.FAILED
        self.servers[ServerState.ENDED] = ended = insecure_copy(wire.server)
        self.frames += [packet.frame for packet in ended.end().outgoing]
        self.servers[ServerState.FAILED] = deserted = insecure_copy(self.servers[ServerState.SHARING])
        deserted.close_stage()  # with too few answers
        assert deserted.state is ServerState.FAILED
        session = wire.clients[TARGET]._context
        self.frames += [m.GroupClosed(session, 0).encode(), m.Decline(session, 1).encode()]
        self.frames += [m.Leave(session).encode(), m.Leave(b"").encode()]
        cohort = wire.clients[TARGET]._cohort
        peer = next(each for each in cohort.neighbourhood if each != cohort.position[TARGET])
        self.frames.append(m.Lost(session, pack_neighbours(cohort, [peer])).encode())


@cache
def recording(kind: SessionKind, seed: bytes = b"seed") -> Recording:
    """One session. Those of one trust level, key agreement and seed have the same invitation and keys."""
    recorded = Recording(kind, seed)
    recorded.run()
    return recorded


KINDS_OF_SESSION = (
    SessionKind(Trust.CURIOUS),
    SessionKind(Trust.CURIOUS, ring=True),
    SessionKind(Trust.MALICIOUS),
    SessionKind(Trust.MALICIOUS, hybrid=True),
)


def recordings(seed: bytes = b"seed") -> list[Recording]:
    """One session of every kind."""
    return [recording(kind, seed) for kind in KINDS_OF_SESSION]
