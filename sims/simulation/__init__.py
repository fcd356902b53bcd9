"""Runs simulations of federated learning. Each has settings and returns a dictionary of results.

    result = simulate(settings)

Data, cohorts and training are drawn from the seed of the settings. The settings say whether sums are plain or
secure; with seeded rounding, both give the same results except for noise. Metrics are measured with access to
the data and models of all clients, which the server of the simulation does not have.
"""

from sims.simulation.metric_observers import OBSERVERS, Observer, register_observer
from sims.simulation.setup import register_channel
from sims.simulation.simulate import simulate

__all__ = ["OBSERVERS", "Observer", "register_channel", "register_observer", "simulate"]
