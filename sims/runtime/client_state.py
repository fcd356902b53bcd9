"""Saves and restores the state of simulated clients between two rounds, to resume a simulation.

The state includes personal models, which no server sees, and the random generators of learners and attackers.
It does not include keys or the registry of public keys: these are made anew when a run is resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgpack
import numpy as np

from protocols.learner import calls_of, set_calls
from protocols.participant import Participant
from protocols.serialisation import RecordError
from secagg.client_budget import Spend
from secagg.client_memory import NEVER, AnswerEntry, VolatileMemory
from secagg.differencing_rules import Rule, SetLog, SumSequence
from secagg.noise.zcdp_cost import Adjacency

SHARED: Final = -1  # the key, besides client ids, of the state that all clients share


class SimulatedMemory(VolatileMemory):
    """A client's record of its sessions, answers and privacy cost. A simulation can save and restore it."""

    def saved_state(self, known: DigestIndex) -> dict[str, Any]:
        spend = self._spend
        return {
            "sessions": known.bits(self._sessions),
            "queries": known.bits(self._queries),
            "rounds": self._rounds,
            "spend": [spend.charge, spend.noised, spend.unnoised, str(spend.adjacency)],
            "sets": known.bits(
                {msgpack.packb([str(each.rule), each.key, members]) for each, members in self.sets.entries()}
            ),
        }

    def restore_state(self, saved: Mapping[str, Any], known: DigestIndex) -> None:
        charge, noised, unnoised, adjacency = saved["spend"]
        self._sessions = set(known.at(saved["sessions"]))
        self._queries = set(known.at(saved["queries"]))
        self._rounds = dict(saved["rounds"])
        self._spend = Spend(charge, noised, unnoised, Adjacency(adjacency))
        self._sets = SetLog()
        for rule, key, members in map(msgpack.unpackb, known.at(saved["sets"])):
            self._sets.add(SumSequence(Rule(rule), key), members)

    def forget_registry(self) -> None:
        """Forget the registry of public keys, because each simulated channel has one of its own."""
        self._registry = (NEVER, b"")

    def take_lost(self, answer: AnswerEntry) -> None:
        """Charge the client for an answer it may have sent before a restart; mark that round as answered."""
        self._spend = self._spend.plus(answer.charge, answer.adjacency)
        self._rounds[answer.group] = max(answer.round_number, self.last_round(answer.group))


class DigestIndex:
    """Numbers the byte strings (digests) that clients store, so that a set of them can be a bit string."""

    def __init__(self, digests: Sequence[bytes] = ()) -> None:
        self._digests = list(digests)
        self._positions = {digest: position for position, digest in enumerate(self._digests)}

    @property
    def content(self) -> bytes:
        packed: bytes = msgpack.packb(self._digests)
        return packed

    @classmethod
    def of(cls, content: bytes) -> DigestIndex:
        return cls(msgpack.unpackb(content))

    def bits(self, digests: set[bytes]) -> bytes:
        """Return a set as bits: bit n is 1 if it has digest n. New digests get the next free numbers."""
        for digest in sorted(digests - self._positions.keys()):
            self._positions[digest] = len(self._digests)
            self._digests.append(digest)
        number = sum(1 << self._positions[digest] for digest in digests)
        return number.to_bytes(-(-number.bit_length() // 8), "little")

    def at(self, bits: bytes) -> Iterator[bytes]:
        """Yield the digests of a set, given the bit string that the method `bits` returned for that set."""
        number = int.from_bytes(bits, "little")
        for position in range(number.bit_length()):
            if number >> position & 1:
                yield self._digests[position]


def save_clients(
    participants: Mapping[int, Participant],
    memories: Mapping[int, SimulatedMemory],
    tamper: Mapping[int, object],
) -> dict[int, bytes]:
    """Return the packed state of each client by id, and their common `DigestIndex` under the key `SHARED`."""
    known, saved = DigestIndex(), {}
    for member, participant in participants.items():
        state = {
            "participant": participant.save(),
            "memory": memories[member].saved_state(known),
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
    """Restore clients from `saved`. Raise `RecordError` if it is damaged or not a save of these clients."""
    if saved.keys() != {*participants, SHARED}:
        raise RecordError("the saved clients are not those of this run")
    known = DigestIndex.of(saved[SHARED])
    for member, participant in participants.items():
        try:
            state = msgpack.unpackb(saved[member])
            participant.restore(state["participant"])
            memories[member].restore_state(state["memory"], known)
            set_learner_state(participant.learner, state["learner"])
            set_learner_state(tamper.get(member), state["tamper"])
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException):
            raise RecordError(f"the saved state of client {member} cannot be read") from None


# --- the random generators of learners ---


def learner_state(learner: object) -> dict[str, Any]:
    """Return how often a learner has trained, and the states of its random generators. If it wraps other
    learners, as an attacker's does, the innermost one is counted, and the generators of all are included."""
    layers = list(_layers(learner))
    generators = [json.dumps(each.bit_generator.state) for each in _generators(layers)]
    return {"calls": calls_of(layers[-1]), "generators": generators}


def set_learner_state(learner: object, state: Mapping[str, Any]) -> None:
    layers = list(_layers(learner))
    set_calls(layers[-1], state["calls"])
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
