"""Train softmax regression on digits with FedAvg and with RFA, over secure sums.

A quarter of the clients submit updates of the opposite sign. The mean goes astray, the median does not.
"""

import numpy as np

from fl.attacks import attack, corrupt_learners
from fl.crowd import Crowd
from fl.data import load
from fl.federation import ClientData
from fl.flat_model import flatten
from fl.models import build
from fl.samples import Array, Samples
from fl.training_settings import Training
from protocols.algorithm import AnyAlgorithm
from protocols.fedavg import FedAvg
from protocols.rfa import RFA
from protocols.run import Run
from sims.runtime import Setting, secure_sum

CLIENTS, ROUNDS = 12, 8


def client_data(samples: Samples) -> dict[int, ClientData]:
    """Deal the samples to the clients at random: nine tenths of each share to train on, the rest to test."""
    shares = np.array_split(np.random.default_rng(0).permutation(len(samples)), CLIENTS)
    cuts = [(share, len(share) * 9 // 10) for share in shares]
    return {
        client: ClientData(samples.take(share[:cut]), samples.take(share[:0]), samples.take(share[cut:]))
        for client, (share, cut) in enumerate(cuts)
    }


def accuracy(algorithm: AnyAlgorithm, crowd: Crowd, start: Array) -> float:
    learners = corrupt_learners(crowd, attack("sign-flip"), range(CLIENTS // 4), 0)
    channel = secure_sum(algorithm, learners, Setting(corrupt=2))
    run = Run(algorithm, channel, algorithm.start(start))
    for _ in range(ROUNDS):
        run.round()
    channel.close()
    scores = crowd.scores(run.model, "test").values()
    return sum(score.correct for score in scores) / sum(score.total for score in scores)


def main() -> None:
    samples = load("digits")
    assert isinstance(samples, Samples)
    model = build("softmax", features=64, classes=10)
    crowd = Crowd(model, client_data(samples), Training(rate=0.3, epochs=2, batch=20))
    start = flatten(model)
    for algorithm in (
        FedAvg(dim=len(start), clients=CLIENTS, clip=100.0),
        RFA(dim=len(start), clients=CLIENTS),
    ):
        print(f"{type(algorithm).__name__}: {accuracy(algorithm, crowd, start):.1%} of the test samples")


if __name__ == "__main__":
    main()
