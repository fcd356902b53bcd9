"""Accelerated steps to a geometric or coordinate median of the clients' vectors, from sums alone.

A server broadcasts a point z. Every client i, with the residual r_i = w_i - z, adds its influence and its
weight to a sum: r_i / max(nu, |r_i|) and 1 / max(nu, |r_i|), where |.| is the norm of the whole vector (a
geometric median) or the size of each coordinate by itself (a coordinate median). The server learns the two
totals, G and W, and computes the next point. Every point costs a secure sum, so few points should be needed.

-G is the gradient of a convex function, the sum of the clients' Huber functions, and W is an upper bound of
its curvature. So the plain move G / W of Weiszfeld's algorithm ("Robust Aggregation for Federated Learning")
never increases the function. But plain moves are short where the curvature is far below W. Three facts allow
faster steps from G and W alone. "The goal" is the minimum of the function.

* Near the goal the plain move is a nearly linear function of the point, even at a client's own point, where G
  jumps. So a few past moves show where it is zero: Anderson's extrapolation, or a secant for one coordinate.
* The goal lies in the direction of G: G_k @ (goal - z_k) >= 0 for every past k. A step that would leave one
  of these half-spaces is too long and is shortened. For one coordinate, they are a bracket around the goal.
* If the plain move grows from point to point, extrapolation is impossible, but differences of G still show
  the curvature along the way (L-BFGS), so that longer steps can be tried.

A `Stepping` object belongs to one set of clients. If clients drop out, G belongs to another function. To
continue, the caller needs a new `Stepping` that starts at the last point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector: TypeAlias = NDArray[np.float64]
IndexArray: TypeAlias = NDArray[np.intp]

_LARGEST = 1e30  # Larger totals are refused. Totals below the inverse count as zero.
_MEMORY = 5  # How many past points an extrapolation uses.
_FAST_SUMS = 100  # After this many sums, a vector's steps are plain, so that its convergence is Weiszfeld's.
_SIMILAR = 30.0  # Past moves that are more than this many times longer are not used to extrapolate.
_SAME = 1e-12  # A change of the move by less than this part of it counts as rounding.
_STRETCH = 4.0  # First limit of a step that is not extrapolated, as a multiple of the plain move.
_LONGEST_STRETCH = 2.0**20
_SMALL = 1e-6  # A G below this part of the largest G so far may be rounding.


class Stepping(ABC):
    """The base class of iterations to a median. `next` computes the next point from G and W, the totals of
    the clients' influences (directions to their vectors) and weights (inverse distances) at the current
    `point`. `start` is the first point. `moved` is the length of the last step (infinite before the first),
    for callers that stop on a tolerance. Entries of G up to `rounding`, the rounding error of the sum, count
    as zero. If G is zero or W is not positive, the point stays."""

    def __init__(self, start: ArrayLike, *, rounding: float = 0.0) -> None:
        self.point: Vector = np.array(start, np.float64, ndmin=1)
        self.moved = np.inf
        self._rounding = rounding
        if self.point.ndim != 1 or not np.isfinite(self.point).all():
            raise ValueError("a start must be a vector of finite numbers")
        if not 0 <= rounding < np.inf:
            raise ValueError("rounding must be a finite number from 0 on")

    def next(self, influence: ArrayLike, weight: ArrayLike) -> Vector:
        """Return the next point, from the totals of the clients' influences and weights at the current one.
        `weight` is one number, or one for each coordinate. The returned vector is read-only. Raises
        `ValueError` if a total has a wrong shape or is too large."""
        total, scale = np.asarray(influence, np.float64), np.asarray(weight, np.float64)
        if total.shape != self.point.shape or scale.shape not in ((), (1,), total.shape):
            raise ValueError(f"totals must be {self.point.size} influences and one weight, or as many")
        if not ((np.abs(total) < _LARGEST).all() and (np.abs(scale) < _LARGEST).all()):
            raise ValueError(f"totals must be finite numbers, smaller than {_LARGEST}")
        total = np.where(np.abs(total) > max(self._rounding, 1 / _LARGEST), total, 0.0)
        following = self._following(total, scale)
        following.setflags(write=False)
        self.moved = float(np.linalg.norm(following - self.point))
        self.point = following
        return following

    @abstractmethod
    def _following(self, influence: Vector, weight: Vector) -> Vector: ...


class PlainStepping(Stepping):
    """An iteration by the plain steps of Weiszfeld's algorithm: total influence divided by total weight."""

    def _following(self, influence: Vector, weight: Vector) -> Vector:
        return self.point + _plain_move(influence, weight)


def fast_stepping(start: ArrayLike, *, per_coordinate: bool, rounding: float = 0.0) -> Stepping:
    """Return an iteration from `start` that needs few sums: to a geometric median or, with `per_coordinate`,
    to a coordinate median. Entries of the total influence up to `rounding` count as zero."""
    if per_coordinate or np.size(start) == 1:
        return CoordinateStepping(start, rounding=rounding)
    return VectorStepping(start, rounding=rounding)


@dataclass(frozen=True, eq=False)
class _Seen:
    """The result of a sum at `point`: total influence and weight, and the plain move influence / weight."""

    point: Vector
    influence: Vector
    weight: float
    move: Vector


class VectorStepping(Stepping):
    """An iteration to a geometric median that needs few sums. The whole vector has one weight. If the minimum
    is not unique (an even number of clients on a line), the result depends on the start. If a step goes in a
    wrong direction, the next step starts from the point before it, at the cost of one sum."""

    def __init__(self, start: ArrayLike, *, rounding: float = 0.0) -> None:
        super().__init__(start, rounding=rounding)
        self._seen: list[_Seen] = []  # The next step starts from the last one.
        self._stretch = _STRETCH
        self._sums = 0

    def _following(self, influence: Vector, weight: Vector) -> Vector:
        if weight.size != 1:
            raise ValueError("a vector's stepping takes one weight")
        move = _plain_move(influence, weight)
        self._sums += 1
        if self._sums > _FAST_SUMS or not move.any():
            return self.point + move
        self._remember(_Seen(self.point, influence, float(weight.item()), move))
        base = self._seen[-1]
        step = self._extrapolated(base)
        if step is None or base.influence @ step <= 0:
            step = self._stretched(base)
        return base.point + self._cut(base, step)

    def _remember(self, new: _Seen) -> None:
        """Store the result `new` of a sum. The next step starts at its point, with one exception: if `new` is
        beyond the median (its influence points back) and its plain move is more than twice as long as at the
        point before, the next step starts at the point before."""
        self._seen.append(new)
        if len(self._seen) > 1:
            old = self._seen[-2]
            beyond = new.influence @ (new.point - old.point) < 0
            if beyond and np.linalg.norm(new.move) > 2 * np.linalg.norm(old.move):
                self._seen[-2:] = [new, old]
        del self._seen[: -_MEMORY - 1]

    def _extrapolated(self, base: _Seen) -> Vector | None:
        """Return the step from `base` to where the plain move would be zero if it were a linear function of
        the point, which earlier sums determine. Return None if no earlier sum is usable."""
        length = float(np.linalg.norm(base.move))
        known = [
            (seen, base.move - seen.move)
            for seen in self._seen[:-1]
            if np.linalg.norm(seen.move) <= _SIMILAR * length
            and np.linalg.norm(base.move - seen.move) > _SAME * length
        ]
        if not known:
            return None
        norms = np.array([np.linalg.norm(change) for _, change in known])
        unit = np.array([change for _, change in known]) / norms[:, None]
        # Directions that differ by less than a thousandth count as equal: rounding errors are not amplified.
        part: Vector = np.linalg.lstsq(unit @ unit.T, unit @ base.move, rcond=1e-6)[0]
        back: Vector = np.array([base.point - seen.point for seen, _ in known])
        step: Vector = base.move - part @ unit - (part / norms) @ back
        return step

    def _stretched(self, base: _Seen) -> Vector:
        """Return the L-BFGS step from `base`, limited in length, towards a smaller sum of distances."""
        rest, pairs = base.influence.copy(), []
        for new, old in zip(self._seen[:0:-1], self._seen[-2::-1], strict=True):
            step, change = new.point - old.point, old.influence - new.influence
            least = 1e-4 * base.weight * step
            if step @ change < step @ least:
                change = least  # There was almost no curvature: use a small one, so that steps become long.
            curvature = step @ change
            if curvature > 0:  # Otherwise both points are equal.
                part = (step @ rest) / curvature
                rest -= part * change
                pairs.append((step, change, curvature, part))
        longer = rest / base.weight
        for step, change, curvature, part in reversed(pairs):
            longer += (part - (change @ longer) / curvature) * step
        return self._shortened(base, longer)

    def _shortened(self, base: _Seen, step: Vector) -> Vector:
        """Return `step`, shortened to at most `_stretch` times the length of the plain move from `base`. If
        it was longer, double `_stretch` for the next call; otherwise reset it to its initial value."""
        ratio = float(np.linalg.norm(step) / np.linalg.norm(base.move))
        limit = self._stretch
        self._stretch = min(2 * limit, _LONGEST_STRETCH) if ratio > limit else _STRETCH
        return step * (limit / ratio) if ratio > limit else step

    def _cut(self, base: _Seen, step: Vector) -> Vector:
        """Return `step`. If it leaves a half-space that, by an earlier sum, contains the median, return the
        part of it that ends halfway to the border, or, if this part is tiny, the plain move from `base`."""
        part = 1.0
        for seen in self._seen[:-1]:
            change = float(seen.influence @ step)
            slack = max(0.0, float(seen.influence @ (base.point - seen.point)))
            if change < 0 and slack + change <= 1e-6 * slack:
                part = min(part, 0.5 * slack / -change)
        return part * step if part > 0.01 else base.move


class CoordinateStepping(Stepping):
    """An iteration to a coordinate median that needs few sums. Weights may be per coordinate.

    In every coordinate, it finds the root of G, the total influence, which falls as the coordinate rises.
    Until there are points on both sides of the root, steps follow the secant of G, and are at least as long
    as G / W (W is the total weight). Then it uses Anderson and Bjoerck's regula falsi on G / W, or if G is
    flat at one end, the secant of the other end. If three sums brought too little progress, it bisects. The
    root stays enclosed, so it is reached. If G is zero on an interval, the first point found there is kept.
    """

    def __init__(self, start: ArrayLike, *, rounding: float = 0.0) -> None:
        super().__init__(start, rounding=rounding)
        dim = self.point.size
        # Row 0 is the end with G > 0, below the root; row 1 the one above it.
        self._ends = np.array([np.full(dim, -np.inf), np.full(dim, np.inf)])
        self._totals = np.zeros((2, dim))
        self._moves = np.zeros((2, dim))
        self._older = np.full((2, 2, dim), np.nan)  # The previous end on either side, and G there.
        self._faith = np.ones((2, dim))  # Factor of the moves. It is reduced if an end stays several times.
        self._side = np.full(dim, -1)
        self._stretch = np.full(dim, _STRETCH)
        self._left = np.full(dim, np.inf)
        self._most = 0.0
        self._sums = 0

    def _following(self, influence: Vector, weight: Vector) -> Vector:
        move = _plain_move(influence, weight)
        at = np.flatnonzero(move)
        self._sums += 1
        self._most = max(self._most, float(np.abs(influence).max(initial=0.0)))
        self._narrow(at, influence[at], move[at])
        closed = np.isfinite(self._ends[:, at]).all(axis=0)
        following = self.point.copy()
        following[at[closed]] = self._inside(at[closed])
        following[at[~closed]] += self._outward(at[~closed])
        return following

    def _narrow(self, at: IndexArray, total: Vector, move: Vector) -> None:
        """Make the current point an end of the bracket around the median, in the coordinates `at`. `total`
        and `move` are the total influence and the plain move there. If the other end has stayed for two sums
        in a row, reduce `_faith`, the factor of its plain move, so that the next point is nearer to it."""
        side = np.where(move > 0, 0, 1)
        before = self._moves[side, at]
        kept = 1 - np.divide(move, before, out=np.ones_like(move), where=before != 0)
        kept = np.where(self._side[at] == side, np.where(kept > 0, kept, 0.5), 1.0)
        self._faith[1 - side, at] = np.where(kept < 1, self._faith[1 - side, at] * kept, 1.0)
        self._faith[side, at] = 1.0
        self._older[:, side, at] = self._ends[side, at], self._totals[side, at]
        self._ends[side, at], self._totals[side, at] = self.point[at], total
        self._moves[side, at], self._side[at] = move, side

    def _secant(self, side: IndexArray, at: IndexArray) -> Vector:
        """For each coordinate in `at`, return the step from the bracket's end on side `side` (0 is the lower)
        to the root of the secant: the line through the total influence at this end and at the previous end on
        this side. The step is infinite if there is no previous end or the line does not fall."""
        end, total, (older, before) = self._ends[side, at], self._totals[side, at], self._older[:, side, at]
        run = np.where(np.isfinite(older), end - older, 0.0)
        fall = (before - total) * np.sign(run)
        length: Vector = np.copysign(np.inf, total)
        np.divide(total * np.abs(run), fall, out=length, where=fall > 0)
        return length

    def _inside(self, at: IndexArray) -> Vector:
        """Return the next point in the coordinates `at`, between the two ends of each bracket."""
        (low, high), side = self._ends[:, at], self._side[at]
        first, second = self._faith[:, at] * self._moves[:, at]
        following: Vector = low + first / (first - second) * (high - low)
        total = np.abs(self._totals[side, at])
        far = total > _SMALL * self._most
        flat = far & (total > 0.5 * np.abs(self._older[1, side, at]))
        beyond = self._ends[1 - side, at] + self._secant(1 - side, at)
        following = np.where(flat & (beyond > low) & (beyond < high), beyond, following)
        if self._sums % 3 == 0:
            left = (high - low) * np.abs(self._moves[:, at]).min(axis=0)
            following = np.where(far & (left > 0.25 * self._left[at]), low + (high - low) / 2, following)
            self._left[at] = left
        enclosed: Vector = np.clip(following, low, high)
        return enclosed

    def _outward(self, at: IndexArray) -> Vector:
        """Return the step in each coordinate of `at`, where the median is not yet bracketed: to the root of
        the secant, but at least the plain step, and at most a multiple of it. This limit doubles whenever it
        shortens a step, and is larger where the total influence is far below the largest so far."""
        side, limit = self._side[at], self._stretch[at]
        move, total = self._moves[side, at], self._totals[side, at]
        limit = np.maximum(limit, 0.25 * self._most / np.maximum(np.abs(total), 1e-12 * self._most))
        first = ~np.isfinite(self._older[0, side, at])
        wanted = np.where(first, 1.0, self._secant(side, at) / move)
        self._stretch[at] = np.where(wanted > limit, np.minimum(2 * limit, _LONGEST_STRETCH), _STRETCH)
        outward: Vector = move * np.clip(wanted, 1.0, limit)
        return outward


def _plain_move(influence: Vector, weight: Vector) -> Vector:
    """Return the plain move `influence` / `weight`, with zeros where the weight is not positive."""
    return np.divide(influence, weight, out=np.zeros_like(influence), where=weight > 1 / _LARGEST)
