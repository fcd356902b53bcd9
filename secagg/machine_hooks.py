"""Hooks: functions that a caller passes to a client or server machine to replace or observe parts of it.

The defaults run the real protocol. Test vectors and repeatable simulations replace the randomness by hooks of
`secagg.insecure_seeds`. A machine with such hooks is not secure.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from secagg.hybrid_keys import Encapsulate, encapsulate
from secagg.keys import Random
from secagg.mask_keystream import SEED_BYTES, KeyStream
from secagg.messages import Message
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.transitions import ServerState

# Returns the key stream that rounds the answer to a question, and draws the noise that stays in the total.
Rounding: TypeAlias = Callable[[Question], KeyStream]
# Maps the encoded residues of all parts and of the hidden count to the residues that are masked instead.
Transform: TypeAlias = Callable[[Question, tuple[Residues, ...]], tuple[Residues, ...]]


@dataclass(frozen=True, kw_only=True)
class ClientHooks:
    """Replaceable and observable parts of a `ClientMachine`.

    `random`      returns random bytes, for all secrets but those that a KEM draws.
    `encapsulate`  returns a KEM secret for a public key, and its ciphertext.
    `rounding`    returns the key stream for rounding an answer, and for the noise that the server cannot
                  remove from it; by default, `random` seeds this stream.
    `transform`   changes encoded residues before they are masked, to simulate a client with a false input.
    `on_message`  is called with the type of each message before the machine handles it. If it raises, the
                  state of the machine does not change.
    """

    random: Random = secrets.token_bytes
    encapsulate: Encapsulate = encapsulate
    rounding: Rounding | None = None
    transform: Transform | None = None
    on_message: Callable[[type[Message]], None] | None = None

    def rounding_stream(self, question: Question) -> KeyStream:
        """Return the key stream for rounding an answer, and for its noise that the server cannot remove."""
        return KeyStream(self.random(SEED_BYTES)) if self.rounding is None else self.rounding(question)

    def transformed(self, question: Question, residues: tuple[Residues, ...]) -> tuple[Residues, ...]:
        """Return the residues to mask: `residues` or, if the hook `transform` is set, its result for them."""
        return residues if self.transform is None else self.transform(question, residues)


@dataclass(frozen=True, kw_only=True)
class ServerHooks:
    """Replaceable and observable parts of a `ServerMachine`.

    `random`      returns random bytes, for the nonce of the invitation and the order of clients on a ring.
    `on_stage`    is called with each stage that the machine enters after the first, and with `READY`.
    `on_message`  is called with the sender's id and each message that the current stage accepts.
    """

    random: Random = secrets.token_bytes
    on_stage: Callable[[ServerState], None] | None = None
    on_message: Callable[[int, Message], None] | None = None


CLIENT_DEFAULTS: Final = ClientHooks()
SERVER_DEFAULTS: Final = ServerHooks()
