"""How the tests of attacks take guards away, and what they expect of a machine that refused."""

from __future__ import annotations

from typing import Any

import pytest

from secagg.client import ClientMachine
from secagg.differencing_rules import SequenceRules
from secagg.events import ClientStep
from secagg.messages import Message
from secagg.query_context import Question
from secagg.session_secrets import Vault
from secagg.transitions import CLIENT_MOVES, ClientState
from secagg.trust_levels import Trust

BOTH = list(Trust)


def allow(*_: object, **__: object) -> None:
    """A rule that refuses nothing."""


def assert_refused(machine: ClientMachine) -> None:
    """The machine has failed for good, and there is nothing left in it to reveal."""
    assert machine.state is ClientState.FAILED
    vault = machine._vault
    secrets = [vault._channel, vault._mask_keys, vault._self_masks, vault._noise, vault._held]
    assert not any(secrets)
    assert machine._question is None


def allow_move(
    patch: pytest.MonkeyPatch, trust: Trust, state: ClientState, message: type[Message], then: ClientState
) -> None:
    """Add one move to the table of legal ones."""
    patch.setitem(CLIENT_MOVES[trust], (state, message), then)


def keep_secrets(patch: pytest.MonkeyPatch) -> None:
    """A vault whose secrets can be taken again and again, of any sum."""

    def mask_secrets(self: Vault, sum_index: int) -> tuple[bytes, bytes]:
        return self._mask_keys[sum_index], self._self_masks[sum_index]

    release = Vault.take_shares

    def shares(self: Vault, sum_index: int, **request: Any) -> dict[int, bytes]:
        held = self._held[sum_index]
        released = release(self, sum_index, **request)
        self._held[sum_index] = held
        return released

    patch.setattr(Vault, "take_mask_secrets", mask_secrets)
    patch.setattr(Vault, "take_shares", shares)
    patch.setattr(Vault, "erase_before", allow)


def forget_sets(patch: pytest.MonkeyPatch) -> None:
    """A client that compares no sets of clients, so that another guard has to refuse."""
    for name in ("of_query", "of_values", "check_cohort"):
        patch.setattr(SequenceRules, name, lambda *_: ())


def keep_question(patch: pytest.MonkeyPatch) -> None:
    """A machine that stays in a sum after it has revealed its shares."""
    original = ClientMachine._reveal

    def reveal(self: ClientMachine, question: Question) -> ClientStep:
        step = original(self, question)
        self._question, self._state = question, ClientState.MASKED
        return step

    patch.setattr(ClientMachine, "_reveal", reveal)
