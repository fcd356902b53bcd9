"""LG-FedAvg: every client has a representation of its own, and all share the layers that judge by it.

"Think Locally, Act Globally: Federated Learning with Local and Global Representations". Clients train their
whole model at once. Only the shared layers, the last ones, are sent and averaged; the others stay with each
client for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from protocols.partial import SAMPLES, FedSim
from protocols.places import Places, chosen, places_field
from secagg.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(FedSim):
    """What FedSim is with all but a few layers personal: its other name, said by what is shared.

    `shared_part`  the parameters that all clients share: in a scenario "output", a pattern of names such as
                   "output.*", or places such as "-650:".
    `weighted`     the mean counts all clients the same by default.
    """

    shared_part: str | None = places_field()
    weighted: bool = False
    weigh_by: str = SAMPLES

    def check(self) -> None:
        if not self.own.rest.size:
            raise ParameterError(
                'shared_part names no parameters: set it to the last layers, such as "-10:"',
                parameter="shared_part",
            )
        super().check()

    @cached_property
    def own(self) -> Places:
        meaning = 'what of the model all clients share, such as "output" in a scenario, or "-10:"'
        return chosen("shared_part", self.shared_part, self.dim, meaning).rest
