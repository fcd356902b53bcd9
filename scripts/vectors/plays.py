"""What is played in the transcripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scripts.vectors.complete_plays import HYBRID, HYBRID_SIGNED, complete
from scripts.vectors.liar_plays import LIARS
from scripts.vectors.noise_plays import NOISE, WIDE_NOISE
from scripts.vectors.play import Play
from scripts.vectors.ring_plays import NAMED_RING, RING
from secagg.trust_levels import Trust

_ALL: Final = (
    complete(Trust.CURIOUS), complete(Trust.MALICIOUS), HYBRID, HYBRID_SIGNED, RING, NAMED_RING, NOISE,
    WIDE_NOISE, LIARS,
)  # fmt: skip
PLAYS: Final[Mapping[str, Play]] = {play.name: play for play in _ALL}
