"""A simulated network between one server and many clients, with scheduled faults, without clock or sockets.

    wire = Wire(server, clients, answer, schedule=random_faults(b"seed", drop=0.05, delay=0.1))
    wire.open()
    total = wire.ask("update", b"query", round_number=0)

A *schedule* decides how each packet is delivered. The same schedule gives the same run, packet by packet. If
a schedule duplicates or damages a frame of the server, the client fails: its machine cannot tell this from a
protocol violation of the server. The failure is recorded, the client leaves, and the others go on. (A real
transport authenticates and deduplicates frames.)

To attack step by step, do not call `run`: take packets out of `waiting`, and `deliver` any packet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from secagg import events
from secagg.client import ClientMachine
from secagg.errors import SERVER, Peer, PeerError
from secagg.events import Asked, Outgoing
from secagg.hashing import digest
from secagg.local_session import STAGE_OF, Absent, AnswerFunction, Stage
from secagg.server import ServerMachine
from secagg.sum_spec import Total
from secagg.transitions import ClientState

# --- packets and their faults ---------------------------------------------------------------


@dataclass(frozen=True)
class Packet:
    """One frame on the simulated network. `number` counts all packets sent. `stage` is the server's stage
    when it was sent or, between stages, the last one before. `sum_index` is -1 in set-up."""

    number: int
    sender: Peer
    receiver: Peer
    frame: bytes = field(repr=False)
    stage: Stage
    sum_index: int


Damage: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True)
class PacketDelivery:
    """How the wire delivers one packet.

    `copies`    how many copies arrive: 0 is a loss, 2 is a duplicate.
    `delay`     how many stages are closed before the packet arrives.
    `overtakes` whether the packet arrives before all packets that are already waiting.
    `damage`    a function that changes the bytes of the frame.
    """

    copies: int = 1
    delay: int = 0
    overtakes: bool = False
    damage: Damage | None = None


DELIVER: Final = PacketDelivery()
DROP: Final = PacketDelivery(copies=0)
DUPLICATE: Final = PacketDelivery(copies=2)
OVERTAKE: Final = PacketDelivery(overtakes=True)

Schedule: TypeAlias = Callable[[Packet], PacketDelivery]
FrameObserver: TypeAlias = Callable[[int, Peer, bytes], None]  # (client, sender, frame)


def faultless(_packet: Packet) -> PacketDelivery:
    return DELIVER


def losing(absent: Absent) -> Schedule:
    """Return a schedule that drops each packet to a client that is absent by the rule `absent`, which is
    called with (client, stage, sum index). So an absent client does not reply either."""

    def delivery(packet: Packet) -> PacketDelivery:
        lost = isinstance(packet.receiver, int) and absent(packet.receiver, packet.stage, packet.sum_index)
        return DROP if lost else DELIVER

    return delivery


def flip(bit: int) -> Damage:
    """Return a function that inverts the bit with index `bit`, modulo the number of bits, of a frame."""

    def damage(frame: bytes) -> bytes:
        at, shift = divmod(bit % (8 * len(frame)), 8)
        return frame[:at] + bytes([frame[at] ^ 1 << shift]) + frame[at + 1 :]

    return damage


def insert(at: int, extra: bytes) -> Damage:
    """Return a function that inserts the bytes `extra` into a frame, before the byte with index `at`."""
    return lambda frame: frame[:at] + extra + frame[at:]


def truncate(length: int) -> Damage:
    """Return a function that cuts a frame off after `length` bytes."""
    return lambda frame: frame[:length]


def random_faults(
    seed: bytes,
    *,
    drop: float = 0.0,
    delay: float = 0.0,
    duplicate: float = 0.0,
    overtake: float = 0.0,
    corrupt: float = 0.0,
) -> Schedule:
    """Return a schedule with at most one fault per packet, drawn from `seed` with these probabilities. A
    delay is 1 to 3 stages. `corrupt` flips a bit, inserts a byte or truncates the frame."""
    rates = {"drop": drop, "delay": delay, "duplicate": duplicate, "overtake": overtake, "corrupt": corrupt}

    def delivery(packet: Packet) -> PacketDelivery:
        draw = uniform(seed, packet.number)
        for name, rate in rates.items():
            if draw < rate:
                return _fault(name, seed, packet)
            draw -= rate
        return DELIVER

    return delivery


def _fault(name: str, seed: bytes, packet: Packet) -> PacketDelivery:
    where = int(uniform(seed, packet.number, 1) * 8 * len(packet.frame))
    damages = (flip(where), insert(where // 8, b"\x00"), truncate(where // 8))
    faults = {
        "drop": DROP,
        "delay": PacketDelivery(delay=1 + where % 3),
        "duplicate": DUPLICATE,
        "overtake": OVERTAKE,
        "corrupt": PacketDelivery(damage=damages[packet.number % 3]),
    }
    return faults[name]


# --- the wire ---------------------------------------------------------------------------------------


class Wire:
    """A simulated network that carries frames between machines, and records them. `answer(member, asked)`
    returns the values with which a client answers a query. `observe(client, sender, frame)` is called when a
    client has accepted a frame of the server, and before it sends one (then `sender` is the client).

    `sent`        all packets before any fault, by number.
    `waiting`     packets that will be delivered, in this order.
    `transcript`  packets that were delivered, after faults.
    `failures`    the first error of every client that failed, by client id.
    """

    def __init__(
        self,
        server: ServerMachine,
        clients: Mapping[int, ClientMachine],
        answer: AnswerFunction,
        *,
        schedule: Schedule = faultless,
        observe: FrameObserver = lambda *_: None,
    ) -> None:
        self.server = server
        self.clients = dict(clients)
        self._answer = answer
        self._schedule = schedule
        self._observe = observe
        self._sum_index = SET_UP
        self._stage = Stage.ADVERTISE
        self._delayed: list[tuple[int, Packet]] = []  # stages still to be closed, and the packet
        self.sent: list[Packet] = []
        self.waiting: list[Packet] = []
        self.transcript: list[Packet] = []
        self.failures: dict[int, PeerError] = {}
        self.server_events: list[events.ServerEvent] = []
        self.client_events: list[tuple[int, events.ClientEvent]] = []

    # --- a whole session ---

    def open(self) -> None:
        """Run the set-up: clients exchange keys and shares. Raises `SumFailed` if too few clients stay."""
        self.invite()
        self.run()
        self.finish()

    def ask(self, kind: str, payload: bytes = b"", *, round_number: int = 0) -> Total:
        """Run one sum; return its total. Raises `SumFailed`, or `LocalError` for a caller's mistake."""
        self.begin(kind, payload, round_number=round_number)
        self.run()
        return self.finish()[-1].total

    def finish(self) -> list[events.SumReleased]:
        """Close the open stage and deliver all packets, again and again, until no stage is open. Return the
        `SumReleased` events, or raise the error with which the sum or the session failed."""
        found = len(self.server_events)
        while self.server.state in STAGE_OF:
            self.close_stage()
            self.run()
        new = self.server_events[found:]
        for event in new:
            if isinstance(event, (events.SumAborted, events.SessionFailed)):
                raise event.error
        return [event for event in new if isinstance(event, events.SumReleased)]

    # --- single steps ---

    def invite(self) -> None:
        self._dispatch((Outgoing(tuple(self.clients), self.server.invitation),))

    def begin(self, kind: str, payload: bytes, *, round_number: int) -> None:
        """Let the server start a sum. Its queries are then in `waiting`, unless dropped or delayed."""
        step = self.server.ask(kind, payload, round_number=round_number)
        self._sum_index += 1
        self._take(step)

    def close_stage(self) -> None:
        """Close the server's stage. Packets that were delayed until now are then in `waiting`, too."""
        self._take(self.server.close_stage())
        self._delayed = [(stages - 1, packet) for stages, packet in self._delayed]
        self.waiting += [packet for stages, packet in self._delayed if stages <= 0]
        self._delayed = [(stages, packet) for stages, packet in self._delayed if stages > 0]

    def abandon(self) -> None:
        """Let the server abandon its sum, and send the frames that tell the clients of it."""
        self._take(self.server.abandon())

    def end(self) -> None:
        self._take(self.server.end())

    def restart_server(self, server: ServerMachine) -> None:
        """Replace the server's machine; sums count from 0 again. Undelivered packets stay in the network."""
        self.server = server
        self._sum_index = SET_UP

    def restart_client(self, member: int, client: ClientMachine) -> None:
        """Replace the machine of a client, as if its process was restarted, and forget its failure."""
        self.clients[member] = client
        self.failures.pop(member, None)

    # --- packets ---

    def send(self, sender: Peer, receiver: Peer, frame: bytes) -> None:
        """Send a frame; the schedule decides whether, when and how it is delivered."""
        self._stage = STAGE_OF.get(self.server.state, self._stage)
        packet = Packet(len(self.sent), sender, receiver, frame, self._stage, self._sum_index)
        self.sent.append(packet)
        delivery = self._schedule(packet)
        if delivery.damage is not None:
            packet = replace(packet, frame=delivery.damage(frame))
        copies = [packet] * delivery.copies
        if delivery.delay:
            self._delayed += [(delivery.delay, copy) for copy in copies]
        elif delivery.overtakes:
            self.waiting[:0] = copies
        else:
            self.waiting += copies

    def run(self) -> None:
        """Deliver packets until none is waiting."""
        while self.waiting:
            self.deliver(self.waiting.pop(0))

    def deliver(self, packet: Packet) -> None:
        """Deliver one packet to its receiver, and send the replies."""
        self.transcript.append(packet)
        if isinstance(packet.receiver, int):
            self._to_client(packet.receiver, packet.frame)
        else:
            assert isinstance(packet.sender, int)
            self.server_events += self.server.receive(packet.sender, packet.frame)

    def _to_client(self, member: int, frame: bytes) -> None:
        client = self.clients[member]
        gone = client.state in (ClientState.ENDED, ClientState.FAILED)
        try:
            step = client.receive(frame)
        except PeerError as error:
            self.failures.setdefault(member, error)
            if not gone:
                self.send(member, SERVER, client.leave())
            return
        self._observe(member, SERVER, frame)
        self.client_events += [(member, event) for event in step.events]
        asked = [event for event in step.events if isinstance(event, Asked)]
        answers = [client.answer(event.sum_index, self._answer(member, event)).frame for event in asked]
        for reply in (*step.frames, *answers):
            self._observe(member, member, reply)
            self.send(member, SERVER, reply)

    def _take(self, step: events.ServerStep) -> None:
        self.server_events += step.events
        self._dispatch(step.outgoing)

    def _dispatch(self, outgoing: Iterable[Outgoing]) -> None:
        for packet in outgoing:
            for member in packet.receivers:
                self.send(SERVER, member, packet.frame)


SET_UP: Final = -1
SumStage: TypeAlias = tuple[Stage, int]  # a stage, and the index of its sum or `SET_UP`
_ORDER: Final = list(Stage)


def explicit(*absences: tuple[int, Stage, int]) -> Absent:
    """Return a drop-out rule: a member is absent if (member, stage, sum index) is one of `absences`."""
    missing = frozenset(absences)
    return lambda member, stage, sum_index: (member, stage, sum_index) in missing


def at_random(seed: bytes, rates: Mapping[Stage, float]) -> Absent:
    """Return a drop-out rule: each member misses a stage with the probability in `rates`, 0 if not there."""

    def absent(member: int, stage: Stage, sum_index: int) -> bool:
        return uniform(seed, member, _ORDER.index(stage), sum_index) < rates.get(stage, 0.0)

    return absent


def leaves_for_good(leavers: Mapping[int, SumStage]) -> Absent:
    """Return a drop-out rule: members in `leavers` are absent in the stage given there and all later ones."""
    return lambda member, *when: member in leavers and _order(*leavers[member]) <= _order(*when)


def returns_next_sum(leavers: Mapping[int, SumStage]) -> Absent:
    """Return a drop-out rule: members in `leavers` miss the stage given and later ones of the same sum."""
    gone = leaves_for_good(leavers)
    return lambda member, stage, sum_index: gone(member, stage, sum_index) and leavers[member][1] == sum_index


def either(*schedules: Absent) -> Absent:
    """Return a drop-out rule: a member is absent if at least one of the rules in `schedules` says so."""
    return lambda *stage: any(schedule(*stage) for schedule in schedules)


def uniform(seed: bytes, *numbers: int) -> float:
    """Return a pseudorandom number in [0, 1) that is the same for the same arguments."""
    fields = (number.to_bytes(8, "big", signed=True) for number in numbers)
    return int.from_bytes(digest("insecure test choice", seed, *fields)[:6], "big") / (1 << 48)


def _order(stage: Stage, sum_index: int) -> tuple[int, int]:
    """Return a key that sorts the stages of all sums by time."""
    return sum_index, _ORDER.index(stage)
