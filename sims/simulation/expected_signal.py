"""Predicts whether a simulation with noise can learn, from trial rounds without noise."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fl.device_and_threads import one_thread
from sims.plan.signal_and_noise import SignalAndNoise, signal_and_noise
from sims.plan.trial_round import measure
from sims.scenario import federated_data
from sims.scenario.settings import Settings
from sims.scenario.training_task import DataFacts, TrainingTask, make_crowd

# Few clients and rounds take a small part of a run's time. Updates of the first round alone say too little:
# they become shorter soon, or longer if the model is deep.
MOST_CLIENTS: Final = 16
ROUNDS: Final = 3


def expected_signal(settings: Settings, root: Path) -> SignalAndNoise | None:
    """Return the noise of the training and what some clients would send in its first rounds; None if no sum
    has noise. `root` contains the directories of data sets. Raise `FLError` or `ParameterError` if the
    settings do not fit the data."""
    if settings.privacy is None:
        return None
    with one_thread():
        federation = federated_data.federation(settings, root)
        task = TrainingTask.of(settings, DataFacts.of(settings, federation))
        found = signal_and_noise(task.algorithm, settings.rounds)
        if found is None or found.decisive is None:
            return found
        every = -(-len(federation.clients) // MOST_CLIENTS)
        some = {client: federation.clients[client] for client in sorted(federation.clients)[::every]}
        crowd = make_crowd(settings, task.module, task.training, some)
        rounds = min(ROUNDS, settings.rounds)
        return found.with_measured(
            measure(task.algorithm, crowd, task.initial, rounds=rounds, begin_round=crowd.begin_round)
        )
