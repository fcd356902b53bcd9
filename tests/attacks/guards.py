"""How the tests of attacks take guards away, and what they expect of a machine that refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from secagg.client import ClientMachine
from secagg.dealt_shares import DealtShares
from secagg.differencing_rules import SequenceRules
from secagg.events import ClientStep
from secagg.input_encoding import Encoding
from secagg.messages import Message
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.session_secrets import MaskSecrets, Vault
from secagg.share_tags import DealtRow, RevealedRow
from secagg.sum_spec import Total
from secagg.sum_unmasking import Tally
from secagg.transitions import CLIENT_MOVES, ClientState
from secagg.trust_levels import Trust

BOTH = list(Trust)


def allow(*_: object, **__: object) -> None:
    """A rule that refuses nothing."""


def assert_refused(machine: ClientMachine) -> None:
    """The machine has failed for good, and there is nothing left in it to reveal."""
    assert machine.state is ClientState.FAILED
    vault = machine._vault
    keys = [vault._channel, vault._kem, vault._channels, vault._mask_keys, vault._self_masks]
    assert not any([*keys, vault._pair_secrets, vault._noise, vault._held])
    assert machine._question is None


def allow_move(
    patch: pytest.MonkeyPatch, trust: Trust, state: ClientState, message: type[Message], then: ClientState
) -> None:
    """Add one move to the table of legal ones."""
    patch.setitem(CLIENT_MOVES[trust], (state, message), then)


def keep_secrets(patch: pytest.MonkeyPatch) -> None:
    """A vault whose secrets can be taken again and again, of any sum."""

    def mask_secrets(self: Vault, sum_index: int) -> MaskSecrets:
        return MaskSecrets(self._mask_keys[sum_index], self._self_masks[sum_index], {})

    release = Vault.take_shares

    def shares(self: Vault, sum_index: int, **request: Any) -> dict[int, RevealedRow]:
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


def unbind_tags(patch: pytest.MonkeyPatch) -> None:
    """Tags of shares that name neither session, dealer, holder nor sum: the same shares have the same tag."""
    patch.setattr(DealtRow, "_prefix", lambda _: b"")


def believe_tags(patch: pytest.MonkeyPatch) -> None:
    """A server for which every revealed share fits the tag that was published of it."""
    patch.setattr(DealtRow, "tag_of", lambda *_: b"")
    patch.setattr(DealtShares, "tag", lambda *_: b"")


def believe_shares(patch: pytest.MonkeyPatch) -> None:
    """A server that compares no reconstructed secret with what its owner published."""
    patch.setattr(Tally, "_matches", lambda *_: True)


def believe_count(patch: pytest.MonkeyPatch) -> None:
    """A server for which the hidden count is always right."""
    original = Encoding.decode

    def uncounted(self: Encoding, residues: Sequence[Residues], *, contributors: int, **rest: Any) -> Total:
        residues[-1][0] = contributors
        return original(self, residues, contributors=contributors, **rest)

    patch.setattr(Encoding, "decode", uncounted)
