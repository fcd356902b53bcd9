"""Simulates federated learning on one machine. Also contains the programs for real deployments and all
commands. This package uses clocks, threads, seeded randomness and the terminal, which the protocols must not
use. It may import all other packages, and no other package imports it."""

__distribution__ = "secagg"
