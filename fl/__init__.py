"""Local training: the computations of one client on its own data.

A client takes the current model, trains it on data that never leave the client, and returns a vector to be
summed. This package does not depend on servers or sums. Outside of itself and third-party packages, it
imports only `protocols.learner`, the learner interface. It uses torch internally, but callers pass and get
models as flat numpy vectors. `fl.trainer` implements one client, `fl.crowd` all clients of a simulation.
"""

__distribution__ = "secagg"
