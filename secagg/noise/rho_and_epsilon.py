"""Conversion between zCDP and (epsilon, delta)-differential privacy, by the package dp-accounting. Its
accountant adds the Renyi divergences of all sums at given orders, and converts the result of each order to an
epsilon for a delta (Proposition 12 of "The Discrete Gaussian for Differential Privacy"). The epsilon of every
order is valid, and the least is returned. More orders can only make it smaller."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg import argument_checks as checks
from secagg.noise.privacy_goal import Orders
from secagg.noise.zcdp_cost import Cost

try:
    from dp_accounting import ZCDpEvent
    from dp_accounting.rdp import RdpAccountant
except ImportError as error:
    raise ImportError(
        'epsilon is computed by dp-accounting, which is not installed: pip install "secagg[dp]"'
    ) from error

_INTEGERS: Final = np.array([*range(2, 129), 256], np.float64)
_FINE_ENOUGH: Final = 1e-12
_FINE_STEP: Final = 1e-6
# Points of a grid: an odd number, so that the best order of one grid is a point of the next one.
_POINTS: Final = 65
# The range of log(a - 1) in which orders a are searched. The accountant uses no order up to 1.01.
_LEAST_ORDER: Final = math.log(0.0101)
_MOST_ORDER: Final = math.log(1e12)


def epsilon(costs: Iterable[Cost | float], *, delta: float, orders: Orders = Orders.CONTINUOUS) -> float:
    """Return the epsilon, at `delta`, of all sums with these privacy `costs` together: the least over all
    Renyi `orders`. A float cost is a zCDP rho. Raises `ParameterError` for an invalid argument."""
    events = Counter(_checked(cost if isinstance(cost, Cost) else Cost(cost)) for cost in costs)
    return _best(events, checks.probability(delta, "delta"), checks.one_of(Orders, orders, "orders"))[0]


def _checked(cost: Cost) -> Cost:
    """Return `cost` as floats. Raises `ParameterError` if rho or xi is negative: it could hide others."""
    return Cost(*(checks.real(number, "a cost", 0.0, math.inf) for number in cost))


@lru_cache(maxsize=1024)
def rho_for(epsilon: float, *, delta: float, orders: Orders = Orders.CONTINUOUS) -> float:
    """Return the largest rho for which rho-zCDP implies (`epsilon`, `delta`)-differential privacy. As a
    function of rho, epsilon is the minimum of straight lines, one for each Renyi order, with that slope.
    Newton's method uses the slope of the least line. If a step goes too far, it bisects instead."""
    delta, orders = checks.probability(delta, "delta"), checks.one_of(Orders, orders, "orders")
    low, high = 0.0, 1.0
    while _of_rho(high, delta, orders)[0] < epsilon:
        low, high = high, 2 * high
    rho = high
    while True:
        found, order = _of_rho(rho, delta, orders)
        low, high = (rho, high) if found <= epsilon else (low, rho)
        step = rho + (epsilon - found) / order
        # An epsilon of zero is cut off, and not on one of the lines, so there is no slope.
        following = step if found > 0 and low <= step < high else (low + high) / 2
        near = following - rho if found <= epsilon else high - low
        if near <= _FINE_ENOUGH * rho:
            return low
        rho = following


def _of_rho(rho: float, delta: float, orders: Orders) -> tuple[float, float]:
    return _best(Counter([Cost(rho)]), delta, orders)


def _best(events: Counter[Cost], delta: float, orders: Orders) -> tuple[float, float]:
    """Return the epsilon at `delta` of the composition of all `events` (cost -> number of sums with it), and
    the Renyi order that gives it. Epsilon is computed at many orders, and the least is returned."""
    if orders is Orders.INTEGER:
        return _at(_INTEGERS, events, delta)
    start, stop, last = _LEAST_ORDER, _MOST_ORDER, math.inf
    while True:
        grid = np.linspace(start, stop, _POINTS)
        found, order = _at(1 + np.exp(grid), events, delta)
        step = grid[1] - grid[0]
        # Stop on a fine grid that improves no further; an infinite epsilon never improves.
        if step < _FINE_STEP and not last - found > _FINE_ENOUGH * found:
            return min(found, last), order
        # Epsilon falls and then rises with the order: the best order is between the neighbours of this one.
        centre, last = math.log(order - 1), found
        start, stop = max(_LEAST_ORDER, centre - step), min(_MOST_ORDER, centre + step)


def _at(orders: NDArray[np.float64], events: Counter[Cost], delta: float) -> tuple[float, float]:
    accountant = RdpAccountant(orders)
    for cost, count in events.items():
        accountant.compose(ZCDpEvent(cost.rho, cost.xi), count)
    found, order = accountant.get_epsilon_and_optimal_order(delta)
    return float(found), float(order)
