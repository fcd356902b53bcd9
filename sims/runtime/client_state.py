"""A simulated client between two rounds, as bytes: what a simulation needs to go on after a restart.

A simulation owns its clients, so it may hold what no server ever sees: personal models, and where learners
and attackers stand in what they draw. Keys are no part of it: a client that goes on makes new ones, and so
the registry that it knew is forgotten as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Protocol, runtime_checkable

import msgpack
import numpy as np
from numpy.typing import ArrayLike

from protocols.participant import Participant
from protocols.serialisation import RecordError
from protocols.vocabulary import Query
from secagg.budget import Spend
from secagg.hashing import DIGEST_BYTES
from secagg.memory import AnswerEntry, VolatileMemory
from secagg.noise.accounting import Adjacency
from secagg.spec import Count

SHARED: Final = -1  # no client's id: what all of them have in common


class SimulatedMemory(VolatileMemory):
    """Memory that a simulation can put down and take up again."""

    def put_down(self, known: Index) -> dict[str, Any]:
        spend = self._spend
        return {
            "sessions": known.bits(self._sessions),
            "queries": known.bits(self._queries),
            "rounds": self._rounds,
            "spend": [spend.charge, spend.noised, spend.unnoised, str(spend.adjacency)],
        }

    def take_up(self, saved: Mapping[str, Any], known: Index) -> None:
        charge, noised, unnoised, adjacency = saved["spend"]
        self._sessions = set(known.at(saved["sessions"]))
        self._queries = set(known.at(saved["queries"]))
        self._rounds = dict(saved["rounds"])
        self._spend = Spend(charge, noised, unnoised, Adjacency(adjacency))

    def take_lost(self, answer: AnswerEntry) -> None:
        """Pay for an answer that may have left, and that a restart has forgotten; its round is over."""
        self._spend = self._spend.plus(answer.charge, answer.adjacency)
        self._rounds[answer.group] = max(answer.round_number, self.last_round(answer.group))


class Index:
    """Digests that many clients know: each is kept once, and every client has a bit for it."""

    def __init__(self, digests: Sequence[bytes] = ()) -> None:
        self._digests = list(digests)
        self._places = {digest: place for place, digest in enumerate(self._digests)}

    @property
    def content(self) -> bytes:
        return b"".join(self._digests)

    @classmethod
    def of(cls, content: bytes) -> Index:
        return cls([content[at : at + DIGEST_BYTES] for at in range(0, len(content), DIGEST_BYTES)])

    def bits(self, digests: set[bytes]) -> bytes:
        for digest in sorted(digests - self._places.keys()):
            self._places[digest] = len(self._digests)
            self._digests.append(digest)
        number = sum(1 << self._places[digest] for digest in digests)
        return number.to_bytes(-(-number.bit_length() // 8), "little")

    def at(self, bits: bytes) -> Iterator[bytes]:
        number = int.from_bytes(bits, "little")
        for place in range(number.bit_length()):
            if number >> place & 1:
                yield self._digests[place]


def save_clients(
    participants: Mapping[int, Participant],
    memories: Mapping[int, SimulatedMemory],
    tamper: Mapping[int, object],
) -> dict[int, bytes]:
    """Return the state of all clients, and under `SHARED` what they have in common."""
    known, saved = Index(), {}
    for member, participant in participants.items():
        state = {
            "participant": participant.save(),
            "memory": memories[member].put_down(known),
            "learner": learner_state(participant.learner),
            "tamper": learner_state(tamper.get(member)),
        }
        saved[member] = msgpack.packb(state)
    return {**saved, SHARED: known.content}


def restore_clients(
    saved: Mapping[int, bytes],
    participants: Mapping[int, Participant],
    memories: Mapping[int, SimulatedMemory],
    tamper: Mapping[int, object],
) -> None:
    """Raises `RecordError` if they are the states of others."""
    if saved.keys() != {*participants, SHARED}:
        raise RecordError("the saved clients are not those of this run")
    known = Index.of(saved[SHARED])
    for member, participant in participants.items():
        try:
            state = msgpack.unpackb(saved[member])
            participant.restore(state["participant"])
            memories[member].take_up(state["memory"], known)
            set_learner_state(participant.learner, state["learner"])
            set_learner_state(tamper.get(member), state["tamper"])
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException):
            raise RecordError(f"the saved state of client {member} is none") from None


# --- where learners stand in what they draw ---


def learner_state(learner: object) -> dict[str, Any]:
    """How often it has trained, and where its generators are, also of what is wrapped in it."""
    layers = list(_layers(learner))
    generators = [json.dumps(each.bit_generator.state) for each in _generators(layers)]
    return {"calls": getattr(layers[-1], "calls", None), "generators": generators}


def set_learner_state(learner: object, state: Mapping[str, Any]) -> None:
    layers = list(_layers(learner))
    if state["calls"] is not None:
        layers[-1].calls = state["calls"]
    for generator, saved in zip(_generators(layers), state["generators"], strict=True):
        generator.bit_generator.state = json.loads(saved)


def _layers(learner: Any) -> Iterator[Any]:
    yield learner
    while (learner := vars(learner).get("wrapped") if hasattr(learner, "__dict__") else None) is not None:
        yield learner


def _generators(layers: Sequence[Any]) -> Iterator[np.random.Generator]:
    for layer in layers:
        for value in getattr(layer, "__dict__", {}).values():
            if isinstance(value, np.random.Generator):
                yield value


@runtime_checkable
class Liar(Protocol):
    """A learner whose client does not say what it has worked out: see `fl.attacks.updates`."""

    def answered(self, values: Mapping[str, Any], most: Mapping[str, int], sent: Any) -> Mapping[str, Any]:
        """What is answered in place of `values`."""
        ...


class SimulatedParticipant(Participant):
    """Answers what its learner says, where that is a liar. What it sends is encoded as for any client.

    Counts that add up to no more than a total, such as a place in a histogram, stay what they are: changed
    one by one, they would be no such counts any more.
    """

    def answer(
        self, kind: str, payload: bytes, *, round_number: int, invited: int
    ) -> Mapping[str, ArrayLike] | None:
        values = super().answer(kind, payload, round_number=round_number, invited=invited)
        if values is None or not isinstance(self.learner, Liar):
            return values
        assert self._algorithm.table is not None  # there was a query
        bounds = {part.name: part.bound for part in self._algorithm.table[kind].parts}
        free = {name: values[name] for name, bound in bounds.items() if getattr(bound, "total", None) is None}
        most = {name: bound.limit for name, bound in bounds.items() if isinstance(bound, Count)}
        sent = _vectors(self._algorithm.query_decoder.decode(kind, payload)[1])
        return {**values, **self.learner.answered(free, most, sent)}


def _vectors(query: Query) -> list[Any]:
    values = (getattr(query, each.name) for each in fields(query))
    return [each for each in values if isinstance(each, np.ndarray)]
