"""Secure sums with simulated clients in worker processes, which connect to the server over TLS.

clients = ClientFactory(make, shared, owned)  # A worker calls `make(shared, data of its clients by id)`.
channel = processes_sum(algorithm, learners, Setting(), clients=clients, workers=4)
"""

from sims.runtime.hosted_clients import ClientFactory, WorkerClients, WorkersFailed
from sims.runtime.processes.sum_channel import ProcessesChannel, processes_sum

__all__ = ["ClientFactory", "ProcessesChannel", "WorkerClients", "WorkersFailed", "processes_sum"]
