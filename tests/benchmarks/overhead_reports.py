"""A report of `overhead` that nobody measured, with numbers that are easy to tell apart."""

from collections.abc import Mapping

import numpy as np

from benchmarks.flower_rounds import FlowerRounds
from benchmarks.overhead import WAYS, OverheadReport, OverheadSetting, WayCosts
from benchmarks.stages import Part
from secagg.topology import GraphPlan

ROUNDS = FlowerRounds(
    version="9.9",
    clients=20,
    rounds=40,
    ours=80.0,
    ours_one_by_one=30.0,
    flower=10.0,
    ours_startup_s=0.25,
    flower_startup_s=12.5,
    difference=1e-6,
)
PLANS = {
    "plain": None,
    "ring": GraphPlan(True, 22, 11, 11, 10),
    "complete": GraphPlan(False, 99, 51, 51, 49),
    "malicious": GraphPlan(False, 99, 56, 56, 44),
}


def milliseconds(way: int) -> Mapping[Part, float]:
    """Twice as much of everything from way to way, and nothing of signatures in most of them."""
    costs = {part: 2.0**way * (place + 1) / 64 for place, part in enumerate(Part)}
    return costs if way == 3 else costs | {Part.CONFIRM: 0.0}


def report(flower: FlowerRounds | str = ROUNDS) -> OverheadReport:
    costs = [
        WayCosts(way, PLANS[way.name], milliseconds(place), np.full(3, 0.125 * place))
        for place, way in enumerate(WAYS)
    ]
    return OverheadReport(OverheadSetting(), 650, costs, flower)
