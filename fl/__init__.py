"""Local training: what one client computes on its own data between two sums.

A client takes the current model, trains it on data that never leaves the client, and turns the
result into a vector of numbers to be summed. This package knows nothing of a server or of how a sum
is made, so it imports none of the other packages. Torch is inside; at the border, models are flat
vectors. `fl.trainer` is one client, `fl.crowd` all clients of a simulation.
"""

__distribution__ = "secagg"
