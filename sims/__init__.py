"""Simulations with many clients and a server on one machine, deployment, and the command line.

This package uses clocks, threads, seeded randomness and the terminal, which the protocols must not use. It
may import all other packages, and none of them imports it.
"""

__distribution__ = "secagg"
