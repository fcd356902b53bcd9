"""Who is still there, whom a stage waits for, and who has answered it."""

from __future__ import annotations

from collections.abc import Iterable

from secagg.errors import OutOfOrder


class Attendance:
    """The clients of a session, by id, as its server sees them."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.answered: set[int] = set()  # in this stage
        self._asked: frozenset[int] | None = None  # None: anybody may answer
        self._waiting: set[int] = set()  # of those asked, who has neither answered nor gone

    @property
    def waiting_for(self) -> tuple[int, ...]:
        return tuple(sorted(self._waiting))

    @property
    def is_full(self) -> bool:
        """Whether all who were asked have answered or gone."""
        return self._asked is not None and not self._waiting

    def here(self, members: Iterable[int]) -> tuple[int, ...]:
        """Those of `members` that have not gone."""
        return tuple(member for member in members if member not in self.gone)

    def expect(self, asked: Iterable[int]) -> None:
        """Begin a stage that waits for `asked`."""
        self._asked = frozenset(asked)
        self._waiting = set(self._asked - self.gone)
        self.answered = set()

    def check(self, sender: int, stage: str) -> None:
        """Somebody the stage was opened for, for the first time."""
        if sender in self.answered:
            raise OutOfOrder(sender, f"a second answer while {stage}")
        if self._asked is not None and sender not in self._asked:
            raise OutOfOrder(sender, "was not asked")

    def answer(self, sender: int) -> None:
        self.answered.add(sender)
        self._waiting.discard(sender)

    def lose(self, member: int) -> None:
        """It is gone for good."""
        self.gone.add(member)
        self._waiting.discard(member)
