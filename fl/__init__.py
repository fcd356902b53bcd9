"""Local training: the computations of one client on its own data.

A client takes the current model, trains it on data that never leave the client, and returns a vector to be
summed. This package does not depend on servers or sums. Of our packages it imports only `protocols.learner`,
the learner interface. Torch is used inside; at the boundary, models are flat numpy vectors. `fl.trainer` is
one client, `fl.crowd` all clients of a simulation.
"""

__distribution__ = "secagg"
