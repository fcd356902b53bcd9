"""The splitting schemes with everything in one place: vectors of all users, stacked, and numpy's own algebra.

Written from the formulas alone, to hold what happens over sums against. Cohorts may change between rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from protocols.serialisation import Vector

Maps = Callable[[Vector, int], Vector]  # all users' maps at their points, in round t


class Central:
    """`maps` takes all users' points, one to a row. `cohort` of a round is a list of users.

    A change of the cohort begins a new window. With gamma = 1 the round after it is the window's first; else
    there is a round without any change, and one in which nobody moves, before that. Unless the round of the
    change begins with a combination: its mean is then taken of z - lean u, and the last cohort's u.
    """

    def __init__(
        self,
        maps: Maps,
        start: Vector,
        users: int,
        setting: tuple[float, float, float],
        tau: int = 0,
        *,
        ridge: float = 0.0,
    ) -> None:
        self.maps, self.tau, self.ridge = maps, tau, ridge
        self.alpha, self.beta, self.gamma = setting
        self.u = np.tile(start, (users, 1))
        self.model = start
        self.models: list[Vector] = []
        self.seen = 0  # rounds of the window
        self._phase = "known"
        self._combining = False  # whether the next round begins with a combination
        self._cohort: list[int] | None = None
        self._pairs: list[tuple[Vector, Vector]] = []  # of the cohort, stacked
        self._last: dict[int, tuple[int, Vector, Vector | None]] = {}  # round, u and z of who was counted

    def round(self, number: int, cohort: Iterable[int] | None = None) -> None:
        here = list(range(len(self.u)) if cohort is None else cohort)
        self._arrive(number, here)
        if self._phase == "asked":  # nobody moves
            self._last |= {user: (number, self.u[user].copy(), None) for user in here}
            self._phase, self._cohort = "known", here
        else:
            self._step(number, here)
        self.models.append(self.model)

    def _arrive(self, number: int, here: list[int]) -> None:
        """Who was away completes its last step with the last mean; who is new begins there."""
        for user in here if number else ():
            last, u, z = self._last.get(user, (-1, self.model, None))
            if last != number - 1:
                self.u[user] = u if z is None else self._image(u, z, self.model)

    def _image(self, u: Vector, z: Vector, mean: Vector) -> Vector:
        w = (1 - self.beta) * z + self.beta * mean
        found: Vector = (1 - self.gamma) * u + self.gamma * w
        return found

    def _step(self, number: int, here: list[int]) -> None:
        z = (1 - self.alpha) * self.u + self.alpha * self.maps(self.u, number)
        leans = self._combining and self.gamma < 1
        lean = (1 - self.gamma) / self.gamma / (self.beta - 1) if leans else 0.0
        before = self.u[self._cohort or here].mean(axis=0)
        self.model = (z - lean * self.u)[here].mean(axis=0) + lean * before
        image = self._image(self.u, z, self.model)
        self._last |= {user: (number, self.u[user].copy(), z[user]) for user in here}
        if self._cohort not in (None, here):
            self._pairs, self.seen = [], 0
            self._phase = "known" if self.gamma == 1 or self._combining else "lost"
        elif self._phase == "lost":
            self._phase = "asked"
        else:
            self._pairs = [*self._pairs, (self.u[here].ravel(), image[here].ravel())][-self.tau - 1 :]
            self.seen += 1
        self.u[here], self._cohort = image[here], here
        self._combining = self.tau > 0 and self.seen > self.tau + 1
        if self._combining:
            self.u[here] = self._combined().reshape(len(here), -1)

    def _combined(self) -> Vector:
        points, images = (np.array(each).T for each in zip(*self._pairs, strict=True))
        residuals = points - images
        gram = residuals.T @ residuals
        inverse = np.linalg.pinv(gram + self.ridge * np.trace(gram) * np.eye(len(gram)))
        weights = inverse.sum(axis=1) / inverse.sum()
        return np.asarray(images @ weights)

    def run(self, rounds: int) -> list[Vector]:
        for number in range(rounds):
            self.round(number)
        return self.models
