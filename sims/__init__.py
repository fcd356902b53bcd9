"""Simulations: whole runs with many clients and a server on one machine, and the command line.

Here is everything that the protocols must not touch: clocks, threads, seeded randomness and the
terminal. This package may import all the others, and none of them imports it.
"""

__distribution__ = "secagg"
