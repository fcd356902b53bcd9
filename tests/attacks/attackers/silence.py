"""A server that reads silence: it asks for a sum with noise, and notes which clients decline.

It needs no total and no mask. If a client declines because its values do not fit, the noise hides nothing of
this, and the server may ask again in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from secagg import messages as m
from secagg import usable_values
from secagg.client import ClientMachine
from secagg.cohort_members import Cohort
from secagg.errors import InputError
from secagg.events import Asked
from tests.attacks.rig import Rig

Source: TypeAlias = Callable[[], Mapping[str, Any]]


def reply(client: ClientMachine, asked: Asked, source: Source) -> bytes:
    """What a client sends that follows the rules: it pays before it looks at its values. It still declines
    if these do not fit, which does not happen unless `usable_values` is taken away."""
    client.charge(asked.sum_index)
    try:
        found = usable_values.usable_values(asked.spec, source)
        return client.answer(asked.sum_index, found.values).frame
    except Exception:
        return client.decline(asked.sum_index)


def reply_without_rules(client: ClientMachine, asked: Asked, source: Source) -> bytes:
    """What a client sends that tells about its values by declining, and pays only if it answers."""
    try:
        values = source()
    except Exception:
        return client.decline(asked.sum_index)
    try:
        return client.answer(asked.sum_index, values).frame
    except InputError:
        return client.decline(asked.sum_index)


class SilenceReader:
    """Asks clients for their values, and finds those whose values do not fit."""

    def __init__(self, rig: Rig, cohort: Cohort) -> None:
        self._rig = rig
        self._cohort = cohort
        self.sizes: set[int] = set()  # of all frames that clients sent

    def suspects(
        self, sources: Mapping[int, Source], answer: Callable[..., bytes] = reply, *, sum_index: int = 0
    ) -> set[int]:
        query = self._rig.query(
            self._cohort, sum_index, self._cohort.ids, payload=b"%d" % sum_index, round_number=sum_index
        )
        return {member for member, source in sources.items() if self._declines(member, query, source, answer)}

    def _declines(self, member: int, query: bytes, source: Source, answer: Callable[..., bytes]) -> bool:
        client = self._rig.machines[member]
        (asked,) = client.receive(query).events
        assert isinstance(asked, Asked)
        frame = answer(client, asked, source)
        self.sizes.add(len(frame))
        return isinstance(m.decode(frame, sender=member, limit=1 << 30), m.Decline)
