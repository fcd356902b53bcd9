"""The sizes in docs/protocol.md, section 15, are those of encoded frames; and what follows in docs/design.md.

Every formula is computed for every frame of real sessions, in which clients drop out, envelopes are damaged
and noise is removed. The worked examples are compared with the formulas, and with frames of these lengths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from secagg import messages as m
from secagg.bitmap import PositionSet, bitmap_bytes, unpack_positions
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.errors import SERVER, Peer
from secagg.graph_parameters import GraphChoice, ring_parameters
from secagg.hybrid_keys import KeyAgreement
from secagg.insecure_seeds import insecure_server_hooks
from secagg.local_session import Stage, local_machines
from secagg.message_records import ID_BYTES, Format
from secagg.session_params import SessionParams
from secagg.shamir import SHARE_BYTES
from secagg.share_tags import TAG_BYTES
from secagg.sum_spec import COUNT_BYTES, L2, LInf, Part, SumSpec, Table
from secagg.testing.faulty_wire import (
    SET_UP,
    Packet,
    PacketDelivery,
    Wire,
    explicit,
    flip,
    losing,
)
from secagg.topology import Graph
from secagg.trust_levels import Trust

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGE: Final = (DOCS / "protocol.md").read_text(encoding="utf-8")
DESIGN: Final = (DOCS / "design.md").read_text(encoding="utf-8")
MESSAGES: Final = (*m.FROM_SERVER, *m.FROM_CLIENT)
Sizes: TypeAlias = Mapping[str, int]
Symbols: TypeAlias = dict[str, Any]  # numbers and functions


def table(name: str, page: str = PAGE) -> list[list[str]]:
    """The cells of the table between two markers of a page, without the line below its heading."""
    text = page.split(f"<!-- {name} -->", 1)[1].split(f"<!-- end {name} -->", 1)[0]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in text.strip().splitlines()]
    return [rows[0], *rows[2:]]


# --- the formulas ------------------------------------------------------------------------------------


def formulas() -> dict[str, str]:
    """The formula of each message."""
    return {
        name: re.findall(r"`([^`]+)`", formula)[0]
        for names, formula in table("formulas")[1:]
        for name in re.findall(r"\w+", names)
    }


def evaluated(formula: str, symbols: Mapping[str, Any]) -> int:
    """The value of a formula, in which a space between two factors stands for a product."""
    product = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula)
    value: int = eval(product, {"__builtins__": {}}, dict(symbols))  # noqa: S307  (the repository's own text)
    return value


def with_header(length: int) -> int:
    return length + (2 if length < 1 << 8 else 3 if length < 1 << 16 else 5)


def length_of_int(value: int) -> int:
    return next((size for bits, size in ((7, 1), (8, 2), (16, 3), (32, 5)) if value < 1 << bits), 9)


FUNCTIONS: Final[Mapping[str, Callable[[int], int]]] = {
    "bin": with_header,
    "int": length_of_int,
    "text": lambda length: length + (1 if length < 32 else 2),
}


def session_symbols(trust: Trust, agreement: KeyAgreement, *, named: bool, **numbers: int) -> Symbols:
    """The symbols that have the same values for all frames of a session. `numbers` are n, d, t, L and R."""
    signed, hybrid, n = trust is Trust.MALICIOUS, agreement is KeyAgreement.HYBRID, numbers["n"]
    symbols: Symbols = {**FUNCTIONS, **numbers, "h": 37}
    symbols |= {"B": ceil(n / 8), "N": ceil((numbers["d"] + 1) / 8)}
    symbols |= {"trust": len(trust), "agreement": len(agreement), "reg": 32 * signed, "ids": 4 * n * named}
    symbols |= {"sig": 64 * signed, "kem": 1184 * hybrid, "ct": 1088 * hybrid}
    for record in "AEP":  # section 3.4
        (formula,) = re.findall(rf"`{record} = ([^`]+)` bytes", PAGE)
        symbols[record] = evaluated(formula, symbols)
    return symbols


def test_every_message_has_a_formula() -> None:
    assert formulas().keys() == {kind.__name__ for kind in MESSAGES}


# --- real sessions -----------------------------------------------------------------------------------

SUMS: Final = 3
NOISE: Final = NoiseAssumptions(clients=40, dropouts=6, colluders=2, removable=True)
NOISY: Final = Part(
    name="y", size=5, bits=30, bound=LInf(0.5), noise=Noise(scale=30, variance=Fraction(8000))
)
TABLE: Final = Table(
    {
        "noisy": SumSpec(parts=(NOISY,), promise=NOISE),
        "of-a-name-with-more-than-31-characters": SumSpec(
            parts=(Part(name="y", size=70, bits=32, bound=L2(1)),)
        ),
    }
)
SILENT, DAMAGED, DROPPED = 3, 5, 8  # deals no shares; has an envelope damaged; misses the first sum


@dataclass(frozen=True)
class Observed:
    """The frames of a session, and the symbols of each."""

    trust: Trust
    graph: GraphChoice
    agreement: KeyAgreement
    named: bool = False
    size: int = 14

    @cached_property
    def wire(self) -> Wire:
        params = SessionParams(
            trust=self.trust,
            corrupt=2,
            sums=SUMS,
            dropout=0.15,
            graph=self.graph,
            key_agreement=self.agreement,
            name_members=self.named,
            security_bits=8,
            liveness_bits=8,
        )
        server, clients = local_machines(
            table=TABLE,
            params=params,
            members=range(self.size),
            server_hooks=insecure_server_hooks(b"sizes"),
        )
        absent = losing(explicit((SILENT, Stage.SHARE, SET_UP), (DROPPED, Stage.MASK, 0)))

        def schedule(packet: Packet) -> PacketDelivery:
            if (packet.sender, packet.stage) == (DAMAGED, Stage.SHARE):
                return PacketDelivery(damage=flip(8 * 60))  # in the first envelope
            return absent(packet)

        sizes = {kind: spec.parts[0].size for kind, spec in TABLE.items()}
        wire = Wire(server, clients, lambda _, asked: {"y": [0] * sizes[asked.kind]}, schedule=schedule)
        wire.open()
        for number, kind in enumerate(TABLE):
            wire.ask(kind, bytes(300 * number), round_number=200 * number)
        wire.begin("noisy", b"once more", round_number=1 << 40)
        wire.abandon()
        wire.run()
        wire.end()
        wire.run()
        assert not wire.failures
        return wire

    def frames(self) -> Iterator[tuple[str, int, Symbols]]:
        """The name, the length and the symbols of each frame, in the order in which they were sent."""
        graph, threshold = self.wire.server._topology.graph, self.wire.server._topology.threshold
        names = {"n": self.size, "d": graph.neighbours, "t": threshold, "L": SUMS, "R": TABLE.seeds}
        common = session_symbols(self.trust, self.agreement, named=self.named, **names)
        seen = Reader(graph, self.size)
        messages = [
            (packet, m.decode(packet.frame, sender=SERVER, limit=1 << 20)) for packet in self.wire.sent
        ]
        for packet, message in messages:
            if isinstance(message, m.Lost):
                seen.read_report(packet.sender, message)
        for packet, message in messages:
            client = packet.sender if isinstance(packet.sender, int) else packet.receiver
            assert isinstance(client, int)
            seen.read(message)
            yield (
                type(message).__name__,
                len(packet.frame),
                {**common, **seen.of_sum, **seen.of_client(client)},
            )


class Reader:
    """Reads the messages of a session, and counts what their sizes depend on."""

    def __init__(self, graph: Graph, size: int) -> None:
        self._graph, self._size = graph, size
        self._lost: dict[int, frozenset[int]] = {}  # client -> dealers whose shares it could not open
        self._roster: set[int] | None = None
        self._survivors: set[int] | None = None
        self.of_sum: Symbols = {}

    def read_report(self, client: Peer, message: m.Lost) -> None:
        assert isinstance(client, int)
        around = self._graph.neighbourhood(client)
        places = unpack_positions(message.dealers, len(around), sender=client)
        self._lost[client] = frozenset(around[place] for place in places)

    def read(self, message: m.Message) -> None:
        match message:
            case m.Query():
                self._roster, self._spec = self._set(message.roster), TABLE[message.kind]
                self.of_sum = {"k": message.sum_index, "round": message.round, "kind": len(message.kind)}
                self.of_sum |= {"payload": len(message.payload), "V": self._spec.packed_bytes, "g": 0}
            case m.Survivors():
                self._survivors, promise = self._set(message.survivors), self._spec.promise
                counts = len(self._roster or ()), len(self._survivors)
                self.of_sum["x"] = len(promise.surplus(*counts)) if promise else 0
            case m.Confirmation():
                self.of_sum["g"] += 1

    def _set(self, bitmap: bytes) -> set[int]:
        return set(PositionSet.parse(bitmap, self._size, sender=SERVER))

    def of_client(self, client: int) -> Symbols:
        around, lost = set(self._graph.neighbourhood(client)), self._lost.get(client, frozenset())
        dealers = around - {client, SILENT}
        found = {"q": len(dealers), "w": len(dealers - lost)}
        if self._roster is not None:
            found |= {"a": len(around & self._roster - {client}), "r": len(around & self._roster - lost)}
        if self._survivors is not None:
            found["v"] = len(around & self._survivors - lost)
        return found


RING: Final = (Trust.CURIOUS, GraphChoice.RING)
OBSERVED: Final = [
    *(Observed(trust, GraphChoice.COMPLETE, agreement) for trust in Trust for agreement in KeyAgreement),
    *(Observed(*RING, agreement, named, size=40) for agreement in KeyAgreement for named in (False, True)),
]


@pytest.mark.parametrize("seen", OBSERVED, ids=str)
def test_formulas_give_the_lengths_of_real_frames(seen: Observed) -> None:
    said, names = formulas(), set()
    for name, length, symbols in seen.frames():
        assert (name, evaluated(said[name], symbols)) == (name, length)
        names.add(name)
    elsewhere = {"Decline", "Leave"}
    elsewhere |= {"KeyList"} if seen.graph is GraphChoice.RING else {"Neighbours"}
    elsewhere |= {"Confirmation", "Confirmations"} if seen.trust is Trust.CURIOUS else set()
    elsewhere |= {"Deposit"} if seen.agreement is KeyAgreement.X25519 else set()
    assert names == said.keys() - elsewhere


def test_drop_outs_bad_shares_and_noise_are_in_these_sessions() -> None:
    """Otherwise symbols could be mistaken for each other."""
    for seen in OBSERVED:
        reveals = [symbols for name, _, symbols in seen.frames() if name == "Reveal"]
        assert any(0 < each["v"] < each["r"] < each["d"] and each["x"] for each in reveals)


def test_formulas_give_the_lengths_of_other_frames() -> None:
    symbols, said = {**FUNCTIONS, "h": 37, "k": 5}, formulas()
    for message in (m.Decline(bytes(32), 5), m.Leave(bytes(32))):
        assert evaluated(said[type(message).__name__], symbols) == len(message.encode())
    assert len(m.Leave(b"").encode()) == 5
    assert "| `Leave` | `h`, or 5 before the invitation was accepted |" in PAGE


# --- the worked examples -----------------------------------------------------------------------------

COLUMNS: Final = [(trust, agreement) for agreement in KeyAgreement for trust in Trust]


@dataclass(frozen=True)
class Example:
    """L = 3, no drop-outs, 1000 elements of 32 bits; 100 clients on the complete graph, or 1000 on a ring, of
    whom 50 may collude and 100 drop out."""

    trust: Trust
    agreement: KeyAgreement
    is_ring: bool = False

    @property
    def heading(self) -> str:
        return f"`{self.trust}`" + (", hybrid" if self.agreement is KeyAgreement.HYBRID else "")

    @property
    def n(self) -> int:
        return 1000 if self.is_ring else 100

    @cached_property
    def neighbours_and_threshold(self) -> tuple[int, int]:
        if not self.is_ring:
            return self.n - 1, self.n // 2 + 1
        found = ring_parameters(self.n, corrupt=50, dropped=100)
        return found.neighbours, found.threshold

    @property
    def form(self) -> Format:
        return Format(3, signed=self.trust is Trust.MALICIOUS, agreement=self.agreement)

    def messages(self) -> Iterator[m.Message]:
        form, context, members = self.form, bytes(32), bytes(bitmap_bytes(self.n))
        (d, threshold), signature = self.neighbours_and_threshold, bytes(form.signature_bytes)
        digests = bytes(32), bytes(32 if form.signed else 0), bytes(32)
        yield m.Invitation(b"", str(self.trust), str(self.agreement), form.sums, *digests)
        yield m.Advertisement(context, bytes(form.advert_bytes))
        if self.is_ring:
            records = bytes((d + 1) * form.neighbour_bytes)
            yield m.Neighbours(context, self.n, threshold, bytes(32), records, b"")
        else:
            yield m.KeyList(context, threshold, bytes(self.n * form.advert_bytes))
        envelopes, tags = bytes(d * form.envelope_bytes), bytes((d + 1) * form.tags_bytes)
        yield m.Shares(context, envelopes, signature, tags, signature)
        yield m.Delivery(context, bytes(d * form.parcel_bytes))
        if form.is_hybrid:
            yield m.Deposit(context, bytes(d * form.deposit_bytes), signature)
        yield m.Query(context, 0, 0, "update", members, b"0")
        spec = SumSpec(parts=(Part(name="delta", size=1000, bits=32, bound=L2(1.0)),))
        yield m.MaskedInput(context, 0, bytes(spec.packed_bytes), bytes(d * COUNT_BYTES), signature)
        yield m.Survivors(context, 0, members)
        if form.signed:
            yield m.Confirmation(context, 0, signature)
            yield m.Confirmations(context, 0, bytes(self.n * (ID_BYTES + form.signature_bytes)))
        dealers = bytes(bitmap_bytes(d + 1))
        yield m.Reveal(
            context, 0, dealers, bytes((d + 1) * SHARE_BYTES), bytes((d + 1) * TAG_BYTES), signature
        )

    def sizes(self) -> Sizes:
        return {type(message).__name__: len(message.encode()) for message in self.messages()}

    def by_formulas(self) -> Sizes:
        d, threshold = self.neighbours_and_threshold
        numbers = {"n": self.n, "d": d, "t": threshold, "L": 3, "R": 0}
        symbols = session_symbols(self.trust, self.agreement, named=False, **numbers)
        symbols |= {"V": 4008, "q": d, "w": d, "a": d, "r": d + 1, "v": d + 1, "x": 0, "g": self.n, "k": 0}
        symbols |= {"round": 0, "kind": len("update"), "payload": 1}
        return {name: evaluated(formulas()[name], symbols) for name in self.sizes()}

    def per_client(self) -> Sizes:
        size = self.sizes()

        def total(*names: str) -> int:
            return sum(size.get(name, 0) for name in names)

        return {
            "set-up, up": total("Advertisement", "Shares", "Deposit"),
            "set-up, down": total("Invitation", "KeyList", "Neighbours", "Delivery"),
            "a sum, up": total("MaskedInput", "Confirmation", "Reveal"),
            "a sum, down": total("Query", "Survivors", "Confirmations"),
        }


EXAMPLES: Final = [
    *(Example(trust, agreement) for trust, agreement in COLUMNS),
    *(Example(Trust.CURIOUS, agreement, is_ring=True) for agreement in KeyAgreement),
]


def documented(name: str, heading: str) -> Sizes:
    """One column of a table."""
    headings, *rows = table(name)
    at = headings.index(heading)
    return {row[0].strip("`"): int(row[at].replace(",", "")) for row in rows if row[at] != "-"}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_worked_example_of_sizes(example: Example) -> None:
    name = "ring sizes" if example.is_ring else "sizes"
    assert documented(name, example.heading) == example.sizes() == example.by_formulas()
    assert documented(f"{name} per client", example.heading) == example.per_client()


def test_the_text_of_the_worked_examples() -> None:
    for symbol, name in (("A", "advert"), ("E", "envelope"), ("P", "parcel")):
        for agreement in KeyAgreement:
            forms = (Example(trust, agreement).form for trust in Trust)
            values = sorted({getattr(form, f"{name}_bytes") for form in forms})
            assert f"{symbol} = {' or '.join(map(str, values))}" in PAGE
    neighbours, threshold = Example(*COLUMNS[0], is_ring=True).neighbours_and_threshold
    assert f"so that `d = {neighbours}` and `t = {threshold}`" in PAGE
    unnamed, named = (with_header(length) for length in (0, 4 * 1000))
    assert f"adds {named - unnamed:,}\nbytes to `Neighbours`" in PAGE


# --- the design record -------------------------------------------------------------------------------


def set_up_on_ring(agreement: KeyAgreement, **numbers: int) -> tuple[int, int]:
    """Bytes up and down of one client, by the formulas, without signatures. `numbers` are n, d and L."""
    symbols = session_symbols(Trust.CURIOUS, agreement, named=False, **numbers, t=20, R=0)
    symbols |= {"q": numbers["d"], "w": numbers["d"]}
    deposit = ("Deposit",) if agreement is KeyAgreement.HYBRID else ()
    up, down = ("Advertisement", "Shares", *deposit), ("Invitation", "Neighbours", "Delivery")
    said = formulas()
    first, second = (sum(evaluated(said[name], symbols) for name in names) for names in (up, down))
    return first, second


def test_costs_of_hybrid_keys() -> None:
    rows = table("hybrid costs", DESIGN)[1:]
    assert {(row[0], row[1]) for row in rows} == {("50", "24"), ("1000", "52")}
    for row in rows:
        n, d, sums = map(int, row[:3])
        costs = [set_up_on_ring(agreement, n=n, d=d, L=sums) for agreement in KeyAgreement]
        ratio = sum(costs[1]) / sum(costs[0])
        assert row[3:] == [f"{size:,}" for pair in costs for size in pair] + [f"{ratio:.1f}"]
