"""What holds one-time secrets cannot be copied or pickled."""

from __future__ import annotations

import copy
import pickle

import pytest

from secagg.hybrid_keys import KemKey, encapsulate
from secagg.input_encoding import Encoding
from secagg.insecure_seeds import SeededRandom
from secagg.keys import Agreement, OneTime
from secagg.mask_keystream import KeyStream
from secagg.session_secrets import MaskSecrets, Vault
from secagg.share_envelopes import EnvelopeCipher
from secagg.sum_spec import Count, Part, SumSpec
from secagg.trust_levels import Trust
from tests.attacks.rig import Rig


def holders() -> list[OneTime]:
    spec = SumSpec(parts=(Part(name="x", size=1, bits=8, bound=Count(1)),))
    encoded = Encoding(spec, cohort=2).encode({"x": [1]}, KeyStream(bytes(32)))
    channel = EnvelopeCipher(bytes(32), session=bytes(32), owner=1, kem=None, encapsulate=encapsulate)
    vault = Vault(owner=1, sums=1, random=SeededRandom(b"v"))
    machine = Rig(2, Trust.CURIOUS).machines[0]
    secrets = MaskSecrets(bytes(32), bytes(32), {})
    return [vault, encoded, machine, Agreement(bytes(32)), channel, secrets, KemKey(bytes(64))]


@pytest.mark.parametrize("holder", holders(), ids=lambda holder: type(holder).__name__)
def test_secrets_are_neither_copied_nor_pickled(holder: OneTime) -> None:
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="holds one-time secrets; it cannot be copied or pickled"):
            attempt(holder)
