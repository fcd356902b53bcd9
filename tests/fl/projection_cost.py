"""What a step with a projection costs, beside one without: run alone, since it measures its own memory.

For a model of a million parameters, a subspace of a thousand dimensions and batches of 64, it prints as JSON
the ratio of the two for p = 1 and 2, and the most memory that the process has had, a whole round of a client
and its server included. `python -m tests.fl.projection_cost softmax`, or mlp.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fl.federation import ClientData
from fl.samples import Array, Samples
from fl.trainer import Trainer
from fl.training_settings import Training
from protocols.learner import PenaltyTerm, Steering
from protocols.lpproj import LpProj1
from protocols.personal_model import OwnModel
from protocols.random_projection import Subspace
from protocols.rounds import Query, run_round
from protocols.serialisation import as_vector
from secagg.sum_spec import Total

BATCH, SIZE, STEPS, REPEATS = 64, 1000, 10, 7
MODELS: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: nn.Linear(999, 1000),
    "mlp": lambda: nn.Sequential(nn.Linear(784, 600), nn.ReLU(), nn.Linear(600, 800), nn.Linear(800, 62)),
}


def trainer_of(name: str) -> Trainer:
    module = MODELS[name]()
    features = next(each.in_features for each in module.modules() if isinstance(each, nn.Linear))
    rng = np.random.default_rng(0)
    train = Samples(rng.normal(size=(4 * BATCH, features)).astype(np.float32), rng.integers(0, 62, 4 * BATCH))
    some = train.take(np.arange(2))
    return Trainer.on(module, ClientData(train, some, some), Training(rate=1e-3, batch=BATCH), device="cpu")


def seconds_of(trainer: Trainer, start: Array, steering: Steering) -> float:
    before = time.perf_counter()
    trainer.train(start, steering, steps=STEPS)
    return time.perf_counter() - before


def whole_round(trainer: Trainer, start: Array) -> None:
    """A client's side, and the common model that its server makes of it."""
    algorithm = LpProj1(
        dim=trainer.flat.dim, clients=1, subspace=SIZE, rounds=1, personal_steps=2, initial=as_vector(start)
    )
    client = algorithm.client(trainer, OwnModel())

    def ask(query: Query) -> Total:
        values = {key: np.asarray(each) for key, each in client.answer(query).items()}
        return Total(values, count=1, invited=1)

    outcome = run_round(algorithm.round(algorithm.start(as_vector(start))), ask)
    assert algorithm.model(outcome.state).shape == start.shape


def main(name: str) -> None:
    torch.set_num_threads(1)
    trainer = trainer_of(name)
    start = trainer.flat.read()
    space = Subspace(dim=trainer.flat.dim, size=SIZE)
    steerings = {
        "plain": Steering(),
        "p=1": Steering(penalty=PenaltyTerm(center=np.zeros(SIZE), pull=1.0, power=1, space=space)),
        "p=2": Steering(penalty=PenaltyTerm(center=np.zeros(SIZE), pull=1.0, power=2, space=space)),
    }
    for steering in steerings.values():
        seconds_of(trainer, start, steering)  # once, so that all is there that is kept
    taken: dict[str, list[float]] = {key: [] for key in steerings}
    for _ in range(REPEATS):  # in turn, so that what else the machine does slows all of them
        for key, steering in steerings.items():
            taken[key].append(seconds_of(trainer, start, steering))
    best = {key: min(each) for key, each in taken.items()}
    whole_round(trainer, start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    ratios = {key: best[key] / best["plain"] for key in ("p=1", "p=2")}
    found = {"parameters": trainer.flat.dim, "ratios": ratios, "peak_bytes": peak}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
