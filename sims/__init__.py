"""Simulates a server and many clients on one machine; also contains deployment and the command line.

This package uses clocks, threads, seeded randomness and the terminal, which the protocols must not use. It
may import all other packages, and no other package imports it.
"""

__distribution__ = "secagg"
