"""Where federated averaging ends on least squares, and how different the users are.

    python -m papers.splitting_limits papers/results

It is the closed form (21) of "A Unifying Framework for Federated Learning". Everything is in the chapter's
terms: f_i is half a sum of squares, step sizes are those of sums, and a gap is that of the sum over all
users. "steps" of 0 stand for infinitely many (Theorem 2).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fl.data.least_squares_problem import LeastSquaresProblem, least_squares
from papers.heterogeneity import at_optimum

FILE: Final = "splitting-limits.jsonl"
STEPS: Final = (2, 5, 10, 20, 50, 100)
PRODUCTS: Final = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 4e-5, 1e-4)  # eta (k - 1)
ETA: Final = 1e-5  # the chapter's
NOISES: Final = (0.25, 2.0, 10.0)
_DIGITS: Final = 5


def lines() -> Iterator[dict[str, Any]]:
    """Yield one line for every number."""
    problem = least_squares()
    for steps in STEPS:
        yield _limit(problem, steps, ETA)
        for product in PRODUCTS:
            yield {"product": product, **_limit(problem, steps, product / (steps - 1))}
    yield _limit(problem, 0, ETA)
    for noise in NOISES:
        different = least_squares(noise=noise, matrices_first=True)
        spread = at_optimum(different.gradients(different.optimum), doubled=True)
        yield {"noise": noise, "heterogeneity": _short(spread)}


def _limit(problem: LeastSquaresProblem, steps: int, eta: float) -> dict[str, Any]:
    end = problem.averaged(steps or math.inf, eta)
    away = problem.a @ (end - problem.optimum)  # the gap of a quadratic is that of its differences
    return {"steps": steps, "eta": _short(eta), "gap": _short(0.5 * float((away * away).sum()))}


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def main(directory: str) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines())
    (Path(directory) / FILE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
