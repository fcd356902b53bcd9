"""What the SecAgg+ of Flower (the package flwr) costs, for the same work as one of our sums.

    python -m benchmarks.flower '{"clients": 50, ...}'

Flower's own client mod and server workflow run, joined by a stand-in for its network that turns every
message into protobuf bytes and back. Only they are timed: not the wire, and not the training that a client
makes up. Clients that drop out do so after sharing their keys and before masking.

Flower draws its ring from the random numbers that the whole process shares, and wants names and logs set
for the whole process too. So each measurement is a process of its own, which also tells its memory apart.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.memory_growth import MemoryGrowth
from secagg.errors import LocalError, ParameterError
from secagg.trust_levels import dropouts_allowed

RINGS: Final = 50  # that are drawn before we believe that none keeps enough neighbours alive
_ROOT: Final = Path(__file__).resolve().parents[1]  # where the package benchmarks is
_QUIET: Final = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_ROUND: Final = 1

# Everything of Flower that is used here. Imported by name, so that types do not depend on what is installed.
_MODULES: Final = {
    "app": "flwr.app",
    "common": "flwr.common",
    "context": "flwr.server.compat.legacy_context",
    "identity": "flwr.supercore.task_identity",
    "mod": "flwr.client.mod",
    "names": "flwr.common.secure_aggregation.secaggplus_constants",
    "proto": "flwr.proto.message_pb2",
    "records": "flwr.compat.common.recorddict_compat",
    "serde": "flwr.common.serde",
    "state": "flwr.server.workflow.constant",
    "workflow": "flwr.server.workflow",
}


class FlowerError(LocalError):
    """Flower is not installed, or did not finish."""


class BrokenRing(Exception):
    """On this ring, drop-outs leave a client with fewer live neighbours than the threshold."""


@dataclass(frozen=True)
class FlowerCosts:
    """One sum of Flower's SecAgg+. Costs of clients are medians, and seconds are CPU time of all threads.

    `seed`                      that of the ring: the one asked for, or the first after it that held.
    `error`                     of the worst coordinate of the mean, against that of unrounded vectors.
    `step`                      between two values that Flower's rounding can tell apart.
    `client_setup_cpu_s`        making keys, agreeing on keys, sharing secrets.
    `client_mask_cpu_s`         from a float vector to a masked one, the shares of neighbours opened.
    `server_sum_cpu_s`          adding up masked vectors.
    `server_unmask_cpu_s`       from shares to the mean, without what a strategy then does with it.
    `wire_cpu_s`                protobuf, both ways and of all clients. No other figure includes it.
    `bytes_up`                  sent by a client that stayed, in all stages.
    `masked_bytes_per_element`  of the message that holds the masked vector.
    `peak_bytes`                growth of a process with the server, and one client at work at a time.
    """

    version: str
    seed: int
    dropped: int
    error: float
    step: float
    client_setup_cpu_s: float
    client_mask_cpu_s: float
    client_unmask_cpu_s: float
    server_setup_cpu_s: float
    server_sum_cpu_s: float
    server_unmask_cpu_s: float
    wire_cpu_s: float
    bytes_up: int
    masked_bytes_per_element: float
    peak_bytes: int

    @property
    def right(self) -> bool:
        """Whether rounding explains the error. Roundings are of less than a step each, as is their mean.

        The quarter is for the shift by the clipping range, which happens in single precision.
        """
        return self.error < 1.25 * self.step


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is summed, among how many clients, and how many of them leave."""

    clients: int
    dim: int
    neighbours: int
    threshold: int
    dropped: int
    seed: int

    def __post_init__(self) -> None:
        """Reject values that Flower would reject late, or would misinterpret."""
        if self.dim < 1:
            raise ParameterError(f"a vector of {self.dim} elements")
        if not 2 <= self.neighbours < self.clients:
            raise ParameterError(f"{self.neighbours} neighbours among {self.clients} clients")
        if self.neighbours % 2 and self.neighbours < self.clients - 1:
            raise ParameterError(f"{self.neighbours} neighbours: on Flower's ring, as many on either side")
        # To Flower, a threshold of 1 is the fraction 1.0, and one of all shares a mistake.
        if not 2 <= self.threshold <= self.neighbours:
            raise ParameterError(f"Flower takes no threshold of {self.threshold} among {self.neighbours + 1}")

    def vector(self, client: int) -> NDArray[np.float32]:
        """Draw the vector when it is needed: those of all clients at once would use most of the memory."""
        drawn = np.random.default_rng((self.seed, client)).random(self.dim, dtype=np.float32)
        return 2 * drawn - 1

    def mean(self, clients: Collection[int]) -> NDArray[np.float64]:
        total = np.zeros(self.dim)
        for client in clients:
            total += self.vector(client)
        return total / len(clients)


def installed() -> bool:
    return find_spec("flwr") is not None


def check_installed() -> None:
    """Raise `FlowerError` if Flower is not installed."""
    if not installed():
        raise FlowerError("Flower is not installed: pip install 'secagg[peers]'")


def measure_flower(
    *, clients: int, dim: int, neighbours: int, threshold: int, dropout: Fraction, seed: int = 0
) -> FlowerCosts:
    """Run one sum in a process of its own.

    `neighbours` and `threshold` are those of a ring of ours; Flower counts a client among its own
    neighbours, so that its number of shares is one more.
    """
    dropped = dropouts_allowed(clients, dropout)
    work = Work(
        clients=clients, dim=dim, neighbours=neighbours, threshold=threshold, dropped=dropped, seed=seed
    )
    check_installed()
    command = [sys.executable, "-m", "benchmarks.flower", json.dumps(asdict(work))]
    done = subprocess.run(  # the command holds numbers only
        command, cwd=_ROOT, env=os.environ | _QUIET, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise FlowerError(_why(done))
    return FlowerCosts(**json.loads(done.stdout))


def _why(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"Flower was ended by signal {-done.returncode}, perhaps for want of memory"
    lines = done.stderr.strip().splitlines() or ["it did not say why"]
    return f"Flower did not finish: {lines[-1]}"


# --- in the process of its own ---


def main(argument: str) -> None:
    """Print the costs of the work as JSON."""
    logging.disable(logging.CRITICAL)
    try:
        costs = _measure(Work(**json.loads(argument)))
    except LocalError as error:
        sys.exit(str(error))
    print(json.dumps(asdict(costs)))


def _measure(work: Work) -> FlowerCosts:
    flower = SimpleNamespace(**{name: import_module(module) for name, module in _MODULES.items()})
    identity = flower.identity.TaskIdentity  # without one, there are no messages
    identity.task_id = identity.run_id = identity.node_id = 1
    for seed in range(work.seed, work.seed + RINGS):
        try:
            return _Sum(flower, work, seed).costs()
        except BrokenRing:
            continue
    raise ParameterError(
        f"none of {RINGS} rings leaves everybody {work.threshold} live neighbours of {work.neighbours + 1} "
        f"when {work.dropped} clients of {work.clients} drop out"
    )


class _Sum:
    """One run of Flower's workflow, on the ring that `seed` draws."""

    def __init__(self, flower: SimpleNamespace, work: Work, seed: int) -> None:
        self._flower, self._work, self._seed = flower, work, seed
        random.seed(seed)
        nodes = [random.getrandbits(62) for _ in range(work.clients)]
        self._growth = MemoryGrowth()
        self._workflow = flower.workflow.SecAggPlusWorkflow(work.neighbours + 1, work.threshold)
        clients = {node: _Client(flower, work, index, node) for index, node in enumerate(nodes)}
        self._grid = Grid(flower, clients, dropped=nodes[: work.dropped], threshold=work.threshold)
        self._strategy = _Strategy(flower, nodes)

    def costs(self) -> FlowerCosts:
        self._grid.start()
        self._workflow(self._grid, self._context())
        self._grid.stop()
        peak = self._growth.peak_bytes()
        grid, stage = self._grid, self._flower.names.Stage
        *setup, adding, unmasking = grid.server_cpu
        masked = median(grid.sent[stage.COLLECT_MASKED_VECTORS].values())
        return FlowerCosts(
            version=metadata.version("flwr"),
            seed=self._seed,
            dropped=self._work.dropped,
            error=self._error(),
            step=2 * self._workflow.clipping_range / self._workflow.quantization_range,
            client_setup_cpu_s=median_of_sums(grid.client_cpu, (stage.SETUP, stage.SHARE_KEYS)),
            client_mask_cpu_s=median_of_sums(grid.client_cpu, (stage.COLLECT_MASKED_VECTORS,)),
            client_unmask_cpu_s=median_of_sums(grid.client_cpu, (stage.UNMASK,)),
            server_setup_cpu_s=sum(setup),
            server_sum_cpu_s=adding,
            server_unmask_cpu_s=unmasking,
            wire_cpu_s=grid.wire_cpu,
            bytes_up=round(median_of_sums(grid.sent, stage.all())),
            masked_bytes_per_element=masked / self._work.dim,
            peak_bytes=peak,
        )

    def _context(self) -> Any:
        """Return the state of a Flower server before a round: a model, and the round's number."""
        flower, app = self._flower, self._flower.app
        model = flower.common.ndarrays_to_parameters([np.zeros(self._work.dim, np.float32)])
        state = app.RecordDict()
        state[flower.state.MAIN_PARAMS_RECORD] = flower.records.parameters_to_arrayrecord(model, True)
        state[flower.state.MAIN_CONFIGS_RECORD] = app.ConfigRecord({flower.state.Key.CURRENT_ROUND: _ROUND})
        bare = app.Context(run_id=1, node_id=1, node_config={}, state=state, run_config={})
        return flower.context.LegacyContext(bare, strategy=self._strategy)

    def _error(self) -> float:
        if self._strategy.mean is None:
            raise FlowerError("its workflow stopped before there was a mean")
        (mean,) = self._flower.common.parameters_to_ndarrays(self._strategy.mean)
        mean -= self._work.mean(range(self._work.dropped, self._work.clients))
        return float(np.abs(mean).max())


class _Strategy:
    """Asks every client, and keeps the mean, which Flower passes once for each client that stayed."""

    mean: Any = None

    def __init__(self, flower: SimpleNamespace, nodes: Iterable[int]) -> None:
        self._instructions = flower.common.FitIns
        self._proxies = [SimpleNamespace(node_id=node, cid=str(node)) for node in nodes]

    def configure_fit(self, _round: int, model: Any, _manager: Any) -> list[tuple[Any, Any]]:
        return [(proxy, self._instructions(model, {})) for proxy in self._proxies]

    def aggregate_fit(self, _round: int, results: list[Any], _failures: list[Any]) -> tuple[Any, Any]:
        _, first = results[0]
        self.mean = first.parameters
        return None, {}


class _Client:
    """A client whose training only draws its vector."""

    training_cpu = 0.0

    def __init__(self, flower: SimpleNamespace, work: Work, index: int, node: int) -> None:
        self._flower, self._work, self._index = flower, work, index
        self.context = flower.app.Context(
            run_id=1, node_id=node, node_config={}, state=flower.app.RecordDict(), run_config={}
        )

    def train(self, message: Any, _context: Any) -> Any:
        began = time.process_time()
        common = self._flower.common
        result = common.FitRes(
            status=common.Status(common.Code.OK, ""),
            parameters=common.ndarrays_to_parameters([self._work.vector(self._index)]),
            num_examples=1000,  # the greatest weight, and the same for all
            metrics={},
        )
        content = self._flower.records.fitres_to_recorddict(result, keep_input=False)
        reply = self._flower.app.Message(content, reply_to=message)
        self.training_cpu = time.process_time() - began
        return reply


class Grid:
    """Replaces Flower's network, and the runtime of its clients."""

    def __init__(
        self,
        flower: SimpleNamespace,
        clients: Mapping[int, _Client],
        *,
        dropped: Collection[int],
        threshold: int,
    ) -> None:
        self._flower, self._clients = flower, clients
        self._dropped, self._threshold = frozenset(dropped), threshold
        self._left = 0.0  # when the server was last left to itself
        self.server_cpu: list[float] = []  # before each stage's messages, and after the last ones
        self.client_cpu: dict[str, dict[int, float]] = defaultdict(dict)  # by stage and client
        self.sent: dict[str, dict[int, float]] = defaultdict(dict)  # bytes, by stage and client
        self.wire_cpu = 0.0

    def start(self) -> None:
        self._left = time.process_time()

    def stop(self) -> None:
        self.server_cpu.append(time.process_time() - self._left)

    def send_and_receive(self, messages: list[Any], **_options: object) -> list[Any]:
        """Return the replies of the clients that are still there, as Flower's grid would."""
        self.stop()
        replies = [reply for message in messages if (reply := self._answer(message)) is not None]
        self.start()
        return replies

    def _answer(self, message: Any) -> Any:
        names, node = self._flower.names, message.metadata.dst_node_id
        request = message.content.config_records[names.RECORD_KEY_CONFIGS]
        stage = request[names.Key.STAGE]
        if stage == names.Stage.SHARE_KEYS:
            self._check_ring(int(name) for name in request if name != names.Key.STAGE)
        if stage == names.Stage.COLLECT_MASKED_VECTORS and node in self._dropped:
            return None
        received, _ = self._carried(message)
        client = self._clients[node]
        client.training_cpu = 0.0
        began = time.process_time()
        reply = self._flower.mod.secaggplus_mod(received, client.context, client.train)
        self.client_cpu[stage][node] = time.process_time() - began - client.training_cpu
        arrived, self.sent[stage][node] = self._carried(reply)
        return arrived

    def _check_ring(self, neighbours: Iterable[int]) -> None:
        """Check before masking: Flower itself would notice only afterwards."""
        if len(set(neighbours) - self._dropped) < self._threshold:
            raise BrokenRing

    def _carried(self, message: Any) -> tuple[Any, int]:
        """Return the message at the other end of the wire, and its bytes."""
        began = time.process_time()
        data = self._flower.serde.message_to_proto(message).SerializeToString()
        arrived = self._flower.serde.message_from_proto(self._flower.proto.Message.FromString(data))
        self.wire_cpu += time.process_time() - began
        return arrived, len(data)


def median_of_sums(values: Mapping[str, Mapping[int, float]], stages: Collection[str]) -> float:
    """Return the median over clients that were there in all stages, of the sum over the stages."""
    present = set.intersection(*(set(values[stage]) for stage in stages))
    return median(sum(values[stage][client] for stage in stages) for client in present)


if __name__ == "__main__":
    main(*sys.argv[1:])
