"""Simulations: one set of settings in, one dictionary of results out.

    result = simulate(settings)

Everything that is drawn follows from the seed of the settings. Sums are plain or secure as the settings say,
with the same numbers. Metrics are measured by an observer that sees every client; no part of the system does.
"""

from sims.simulation.observers import OBSERVERS, Observer, register_observer
from sims.simulation.setup import register_channel
from sims.simulation.simulate import simulate

__all__ = ["OBSERVERS", "Observer", "register_channel", "register_observer", "simulate"]
