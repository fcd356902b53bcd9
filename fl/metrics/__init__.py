"""Metrics of a simulation that need results of single clients; a deployed server sees only sums."""
