"""Drop-outs by law: who goes missing at which stage of which sum, drawn from a seed.

Each draw is a function of the seed, the client, the round and the sum alone, so the same clients go missing
whatever carries the sums, and once more if a round is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from secagg.errors import ParameterError
from secagg.hashing import digest
from secagg.local import Stage

_BITS: Final = 64


@dataclass(frozen=True, kw_only=True)
class Law:
    """Chances that a client goes missing.

    `training`  from the sum that begins a round.
    `between`   from a later sum of a round that is in no group with an earlier one.
    `group`     between two sums of one group, which closes that group.
    `reveal`    after masking, and before revealing.

    Raises `ParameterError` for a chance that is not from 0 to below 1.
    """

    seed: bytes
    training: float = 0.0
    between: float = 0.0
    group: float = 0.0
    reveal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("training", "between", "group", "reveal"):
            if not 0 <= getattr(self, name) < 1:
                raise ParameterError(f"the chance to drop out ({name}) must be from 0 to below 1")

    def missing(self, member: int, stage: Stage, number: int, index: int, *, later: bool) -> bool:
        """Whether it is missing from this stage of sum `index` of round `number`.

        `later` says that an earlier sum of the round was of the same group. Nobody is missing from set-up.
        """
        if stage in (Stage.ADVERTISE, Stage.SHARE):
            return False
        if stage is not Stage.MASK:
            return self._happens(self.reveal, "reveal", member, number, index)
        chance = self.training if index == 0 else self.group if later else self.between
        return self._happens(chance, "mask", member, number, index)

    def _happens(self, chance: float, what: str, member: int, number: int, index: int) -> bool:
        if not chance:
            return False
        place = b"".join(each.to_bytes(8, "big") for each in (member, number, index))
        drawn = digest("simulated drop-out", self.seed, what.encode(), place)
        return int.from_bytes(drawn[: _BITS // 8], "big") < chance * (1 << _BITS)
