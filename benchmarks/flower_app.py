"""A training task as a Flower app, on Flower's simulation engine. Runs in any Python that has flwr and ray.

    python flower_app.py TASK.npz RESULT.json

It knows nothing of this project and is copied elsewhere to run, so that the Python may be one in which this
project is not installed. Clients train with numpy alone: the less a client takes, the more of the time is the
engine's, and nothing has to be imported in Ray's workers.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@cache
def task(path: str) -> SimpleNamespace:
    """Return the task, which is read once in every process."""
    with np.load(path) as archive:
        return SimpleNamespace(**{name: archive[name] for name in archive.files})


def samples_of(path: str, client: int) -> tuple[Array, Array]:
    """Return the samples of one client."""
    everything = task(path)
    start, stop = everything.bounds[client : client + 2]
    return everything.x[start:stop], everything.y[start:stop]


def trained(weight: Array, bias: Array, x: Array, y: Array, *, steps: int, rate: float) -> list[Array]:
    """Return a softmax regression after some full gradient steps."""
    weight, bias = weight.copy(), bias.copy()
    wanted = np.eye(len(bias), dtype=weight.dtype)[y]
    for _ in range(steps):
        logits = x @ weight.T + bias
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        error = (chances - wanted) / len(y)
        weight -= rate * (error.T @ x)
        bias -= rate * error.sum(axis=0)
    return [weight, bias]


def make_client(path: str) -> Any:
    """Return the app of a client."""
    flower = SimpleNamespace(app=import_module("flwr.app"), clientapp=import_module("flwr.clientapp"))
    app = flower.clientapp.ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        everything = task(path)
        x, y = samples_of(path, int(context.node_config["partition-id"]))
        weight, bias = message.content["arrays"].to_numpy_ndarrays()
        model = trained(weight, bias, x, y, steps=int(everything.steps), rate=float(everything.rate))
        content = {
            "arrays": flower.app.ArrayRecord(model),
            "metrics": flower.app.MetricRecord({"num-examples": len(y)}),
        }
        return flower.app.Message(content=flower.app.RecordDict(content), reply_to=message)

    return app


def make_server(path: str, ends: list[float], models: list[Any]) -> Any:
    """Return the app of the server. It appends to `ends` when rounds end, and to `models` the last model."""
    app = import_module("flwr.serverapp").ServerApp()
    strategies = import_module("flwr.serverapp.strategy")
    records = import_module("flwr.app")

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, _context: Any) -> None:
        everything = task(path)
        clients = len(everything.bounds) - 1
        strategy = strategies.FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )

        def note(_round: int, arrays: Any) -> None:
            ends.append(time.perf_counter())
            models[:] = arrays.to_numpy_ndarrays()

        strategy.start(
            grid=grid,
            initial_arrays=records.ArrayRecord([everything.weight, everything.bias]),
            num_rounds=int(everything.rounds),
            evaluate_fn=note,
        )

    return app


def main(path: str, result: str) -> None:
    started = time.perf_counter()
    ends: list[float] = []
    models: list[Any] = []
    simulation = import_module("flwr.simulation")
    simulation.run_simulation(
        server_app=make_server(path, ends, models),
        client_app=make_client(path),
        num_supernodes=len(task(path).bounds) - 1,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    # The first end is that of round 0, in which nothing happens; the first round starts the workers.
    found = {
        "version": metadata.version("flwr"),
        "startup_s": ends[1] - started,
        "rounds_s": [later - earlier for earlier, later in pairwise(ends[1:])],
        "model": np.concatenate([np.asarray(each, np.float64).ravel() for each in models]).tolist(),
    }
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    # What Ray's workers are sent refers to a module by its name, which they can import.
    import_module(Path(__file__).stem).main(*sys.argv[1:])
