"""Hooks: what a caller may replace in a machine, or observe of it. The defaults are the real protocol.

Randomness is an argument, so that a test vector or a simulation under a seed needs no subclass. A machine
with a seeded hook protects nothing: `secagg.insecure_seeds` makes such hooks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from secagg.keys import Random
from secagg.mask_keystream import SEED_BYTES, KeyStream
from secagg.messages import Message
from secagg.query_context import Question
from secagg.residue_ring import Residues
from secagg.transitions import ServerState

# The key stream that rounds the answer to a question, and draws the noise that stays in the total.
Rounding: TypeAlias = Callable[[Question], KeyStream]
# Encoded residues of every part and of the hidden count -> the residues that are masked instead.
Transform: TypeAlias = Callable[[Question, tuple[Residues, ...]], tuple[Residues, ...]]


@dataclass(frozen=True, kw_only=True)
class ClientHooks:
    """Replaceable parts of a `ClientMachine`.

    `random`      the source of all its secrets.
    `rounding`    the stream that rounds an answer; by default, one that `random` seeds.
    `transform`   changes encoded residues before they are masked: a client that lies inside the sum.
    `on_message`  is called with the type of each message before the machine handles it. If it raises, the
                  machine has not seen the message.
    """

    random: Random = secrets.token_bytes
    rounding: Rounding | None = None
    transform: Transform | None = None
    on_message: Callable[[type[Message]], None] | None = None

    def rounding_stream(self, question: Question) -> KeyStream:
        """Return the stream that rounds the answer, and draws the noise that stays in the total."""
        return KeyStream(self.random(SEED_BYTES)) if self.rounding is None else self.rounding(question)

    def transformed(self, question: Question, residues: tuple[Residues, ...]) -> tuple[Residues, ...]:
        """Return the residues to mask."""
        return residues if self.transform is None else self.transform(question, residues)


@dataclass(frozen=True, kw_only=True)
class ServerHooks:
    """Replaceable and observable parts of a `ServerMachine`.

    `random`      the source of its nonce and of the order of a ring.
    `on_stage`    is called with each state that the machine enters.
    `on_message`  is called with the sender and the message that the machine has accepted.
    """

    random: Random = secrets.token_bytes
    on_stage: Callable[[ServerState], None] | None = None
    on_message: Callable[[int, Message], None] | None = None


CLIENT_DEFAULTS: Final = ClientHooks()
SERVER_DEFAULTS: Final = ServerHooks()
