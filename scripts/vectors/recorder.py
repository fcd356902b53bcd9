"""A client's life up to the frame that it will refuse, written down as it is played.

A rig plays the server by hand. What it feeds client 0 is recorded, so that a test can build the same client
from a seed, feed it the same frames, and find it in the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scripts.vectors.describe import chained, describe_policy, describe_registry, describe_table
from secagg import messages as m
from secagg.differencing_rules import ContentOf
from secagg.message_records import Parcel, encode_signatures
from secagg.sum_spec import Part, Residue, SumSpec, Table
from secagg.trust_levels import Trust
from tests.attacks.rig import PART, Rig

SUMS: Final = 3
CLIENTS: Final = 4
THRESHOLD: Final = 3
ROUND: Final = 5
EVERYBODY: Final = range(CLIENTS)
_SPEC: Final = SumSpec(parts=(Part(name=PART, size=2, bits=12, bound=Residue()),), times=2)
TABLE: Final = Table({"vector": _SPEC, "once": SumSpec(parts=_SPEC.parts)})


def without_nonce(size: int) -> ContentOf:
    """What says that two queries are the same if all but the first `size` bytes of their payloads are."""
    return lambda _kind, payload: payload[size:]


class Recorder(Rig):
    """A rig that writes down what it feeds its clients; `name` is that of their configuration."""

    def __init__(
        self,
        trust: Trust,
        *,
        clients: int = CLIENTS,
        corrupt: int = 1,
        name: str = "",
        table: Table = TABLE,
        policy_changes: Mapping[str, Any] | None = None,
        static: Sequence[str] = (),
        nonce_bytes: int = 0,
    ) -> None:
        changes = {"max_cohort": clients + 1, "unnoised_sums": 4, "max_query_bytes": 2048}
        self.name = name or str(trust)
        self.nonce_bytes = nonce_bytes  # at the start of every payload, which belong to the round
        self.steps: dict[int, list[dict[str, Any]]] = {k: [] for k in range(clients)}
        super().__init__(
            clients=clients,
            trust=trust,
            corrupt=corrupt,
            sums=SUMS,
            table=table,
            registered=2,
            seed=b"refusals",
            policy_changes={**changes, **(policy_changes or {})},
            static=static,
            content_of=without_nonce(nonce_bytes),
        )
        self.vectors = {k: np.array([k, 4095 - k], np.uint32) for k in range(clients)}

    def send(self, member: int, frame: bytes) -> list[m.Message]:
        self.steps[member].append({"frame": frame.hex()})
        return super().send(member, frame)

    def answer(self, member: int, values: NDArray[Any] | None = None) -> m.MaskedInput:
        self.steps[member].append({"answer": self.vectors[member].tolist()})
        return super().answer(member, values)

    def describe(self) -> dict[str, Any]:
        return {
            "seed": self.seed.hex(),
            "member": 0,
            "policy": describe_policy(self.policy),
            "table": describe_table(self.table),
            "registry": describe_registry(self.registry),
            "identity": self.identity(0).secret().hex() if self.registry else None,
            **({"static": list(self.static)} if self.static else {}),
            **({"nonce_bytes": self.nonce_bytes} if self.nonce_bytes else {}),
        }


class Book:
    """Collects configurations, starts and cases, each start once."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.starts: dict[str, Any] = {}
        self.cases: list[dict[str, Any]] = []

    def start(self, name: str, rig: Recorder, *, memory: dict[str, Any] | None = None) -> str:
        """Client 0 of `rig` as it stands now, under a name."""
        self.clients.setdefault(rig.name, rig.describe())
        row = {"client": rig.name, "memory": memory or {}, "steps": list(rig.steps[0])}
        assert self.starts.setdefault(name, row) == row
        return name

    def chained_starts(self) -> dict[str, Any]:
        rows = chained({name: start["steps"] for name, start in self.starts.items()})
        return {name: {**start, **rows[name]} for name, start in self.starts.items()}

    def case(self, name: str, start: str, frame: bytes, error: str) -> None:
        self.cases.append({"name": name, "start": start, "frame": frame.hex(), "error": error})


class Session:
    """An honest session up to where a case wants to cheat."""

    def __init__(self, trust: Trust, rig: Recorder | None = None) -> None:
        self.rig = rig or Recorder(trust)
        self.invitation = self.rig.invitation()

    def advertise(self) -> Session:
        self.adverts = self.rig.advertise(self.invitation)
        self.key_list = self.rig.key_list(self.invitation, self.adverts, THRESHOLD)
        self.cohort = self.rig.cohort(self.invitation, self.key_list, self.adverts, THRESHOLD)
        return self

    def share(self) -> Session:
        self.advertise()
        self.shares = {k: self.rig.share(k, self.key_list, CLIENTS) for k in EVERYBODY}
        return self

    def parcels(self, receiver: int = 0) -> list[Parcel]:
        return self.rig.parcels(self.cohort, self.shares, receiver)

    def deliver(self, *, without: Sequence[int] = ()) -> Session:
        self.share()
        for member in EVERYBODY:
            kept = [parcel for parcel in self.parcels(member) if parcel.sender not in without]
            self.rig.send(member, self.rig.delivery(self.cohort, kept))
        return self

    def query(self, index: int = 0, roster: Iterable[int] = EVERYBODY, **changes: Any) -> bytes:
        settings = {"payload": b"query %d" % index, "kind": "vector", "round_number": ROUND}
        return self.rig.query(self.cohort, index, list(roster), **{**settings, **changes})

    def ask(self, index: int = 0) -> Session:
        frame = self.query(index)
        for member in EVERYBODY:
            self.rig.send(member, frame)
        return self

    def mask(self, index: int = 0) -> Session:
        self.ask(index)
        for member in EVERYBODY:
            self.rig.answer(member)
        return self

    def sign(self, index: int = 0) -> Session:
        self.mask(index)
        frame = self.survivors(index, EVERYBODY)
        replies = {k: self.rig.send(k, frame)[0] for k in EVERYBODY}
        signed = {k: r.signature for k, r in replies.items() if isinstance(r, m.Confirmation)}
        self.signatures = list(signed.items())
        return self

    def reveal(self, index: int = 0) -> Session:
        self.sign(index)
        if self.signatures:
            for member in EVERYBODY:
                self.rig.send(member, self.confirmations(index, self.signatures))
        return self

    def survivors(self, index: int, members: Iterable[int]) -> bytes:
        return self.rig.survivors(self.cohort, index, list(members))

    def confirmations(self, index: int, signatures: Sequence[tuple[int, bytes]]) -> bytes:
        blob = encode_signatures(signatures)
        return m.Confirmations(self.cohort.session, index, blob).encode()
