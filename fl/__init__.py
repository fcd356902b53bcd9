"""Local training: what one client computes on its own data.

A client takes the current model, trains it on data that never leaves the client, and returns a vector to be
summed. This package knows nothing about servers or sums; of our packages it imports only
`protocols.learner`, the learner interface. Torch is used inside; at the boundary, models are flat numpy
vectors. `fl.trainer` is one client, `fl.crowd` all clients of a simulation.
"""

__distribution__ = "secagg"
