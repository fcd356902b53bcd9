"""Sums with simulated clients in actors of Ray, on this machine or on a cluster.

clients = ClientFactory(make, shared, owned)  # An actor calls `make(shared, data of its clients by id)`.
channel = ray_sum(algorithm, learners, Setting(), clients=clients, place=RayPlace(), actors=4, secure=True)

Ray itself (extra `ray`) is imported when a channel is first used, not before.
"""

from sims.runtime.ray.cluster import RayPlace, require_ray
from sims.runtime.ray.sum_channel import RayChannel, ray_sum

__all__ = ["RayChannel", "RayPlace", "ray_sum", "require_ray"]
