"""Carries the letters of a tunnel from the server's job process to the sites."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import trio

from secagg.net.tunnel import member_of_node
from sims.engines.nvflare.cells import LETTER, Cell, ask, letter_bytes

HOLD: Final = 5.0  # seconds for which a site keeps a letter
_PATIENCE: Final = 2 * HOLD  # seconds without a sign of a reply after which it is lost
_AWAY: Final = 2.0  # seconds for which a site that cannot be reached is left alone
_LETTERS: Final = 4  # on their way to a site at a time


class CellCarrier:
    """Implements `Carrier` with requests to cells. `sites` are the names of all sites, and `cell_of` returns
    the name of the cell at which a site takes letters."""

    def __init__(self, cell: Cell, job: str, sites: Collection[str], cell_of: Callable[[str], str]) -> None:
        self._cell = cell
        self._job = job
        self._sites = sorted(sites)
        self._cell_of = cell_of
        # Each exchange waits in a thread of its own; with trio's limit of 40, some sites would get no letter.
        self._threads = trio.CapacityLimiter(max(1, _LETTERS * len(sites)))

    async def run(self) -> None:
        """Do nothing: NVFlare has threads of its own."""
        await trio.sleep_forever()

    async def nodes(self) -> Collection[str]:
        """Return all sites, whether or not they can be reached: to leave one out would lose its replies that
        are on their way."""
        await trio.lowlevel.checkpoint()
        return self._sites

    async def exchange(self, node: str, letter: bytes) -> bytes | None:
        reply = await trio.to_thread.run_sync(
            self._send, node, letter, limiter=self._threads, abandon_on_cancel=True
        )
        if reply is None:
            await trio.sleep(_AWAY)  # NVFlare knows at once that a site is away
        return reply

    def _send(self, site: str, letter: bytes) -> bytes | None:
        target = self._cell_of(site)
        is_answered, reply = ask(self._cell, target, LETTER, letter, job=self._job, seconds=_PATIENCE)
        return letter_bytes(reply) if is_answered else None


def sites_of(members: Collection[int], known: Collection[str]) -> list[str]:
    """Return the names of the sites of all `members`. NVFlare tells a job only the names of the sites that
    were there when it began (`known`); the others are named alike, such as "site-3" beside "site-1".

    >>> sites_of([1, 2, 3], ["site-1", "site-3"])
    ['site-1', 'site-2', 'site-3']
    """
    found = {member_of_node(name): name for name in known}
    some = next(((member, name) for member, name in found.items() if member is not None), None)
    if some is None:
        return sorted(known)
    prefix = some[1].removesuffix(str(some[0]))
    return [found.get(member, f"{prefix}{member}") for member in sorted(members)]
