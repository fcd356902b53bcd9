"""Carries the letters of a tunnel from the server's job process to the sites."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

import trio

from secagg.net.tunnel import member_of_node
from sims.engines.nvflare.cells import LETTER, Cell, ask, letter_bytes

HOLD: Final = 5.0  # seconds for which a site keeps a letter
_PATIENCE: Final = 2 * HOLD  # seconds without a sign of a reply after which it is lost
_AWAY: Final = 2.0  # seconds for which a site that cannot be reached is left alone
_LETTERS: Final = 4  # on their way to a site at a time
_logger: Final = logging.getLogger(__name__)


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
    were there when it began (`known`); for the others, names like most of these are guessed, such as "site-3"
    beside "site-1". The log names them, and sites that no member can have, or that stand for the same member.

    >>> sites_of([1, 2, 3], ["site-1", "site-3"])
    ['site-1', 'site-2', 'site-3']
    >>> sites_of([4, 5, 10], ["site-04"])
    ['site-04', 'site-05', 'site-10']
    """
    found: dict[int, str] = {}
    for name in sorted(known):
        member = member_of_node(name)
        if member is None or member not in members:
            _logger.warning("site %r is the site of no member: its name must end with a member id", name)
        elif member in found:
            _logger.warning(
                "sites %r and %r are both of member %d: only the first is used", found[member], name, member
            )
        else:
            found[member] = name
    if not found:
        return sorted(known)
    guessed = {member: _alike(found, member) for member in sorted(members) if member not in found}
    if guessed:
        _logger.warning(
            "guessed the names of sites that are not there yet: %s. A site with another name gets nothing "
            "in this job",
            ", ".join(guessed.values()),
        )
    return [found.get(member) or guessed[member] for member in sorted(members)]


def _alike(found: Mapping[int, str], member: int) -> str:
    """Return the name that the site of `member` has if it is named like most of those that are there."""
    patterns = [_pattern(found[each]) for each in sorted(found)]

    def votes(pattern: tuple[str, int]) -> tuple[int, int]:
        alike = sum(prefix == pattern[0] for prefix, _width in patterns)
        return alike, sum(_name(pattern, each) == name for each, name in found.items())

    return _name(max(patterns, key=votes), member)


def _pattern(name: str) -> tuple[str, int]:
    """Return the part of a name before its number, and the width to which zeros pad the number."""
    prefix = name.rstrip("0123456789")
    digits = name.removeprefix(prefix)
    return prefix, len(digits) if digits.startswith("0") else 0


def _name(pattern: tuple[str, int], member: int) -> str:
    prefix, width = pattern
    return f"{prefix}{member:0{width}d}"
