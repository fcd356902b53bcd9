"""Secure sums with clients in worker processes, connected over TLS.

clients = ClientFactory(make, shared, owned)  # A worker calls `make(shared, owned)` to make its clients.
channel = processes_sum(algorithm, learners, Setting(), clients=clients, workers=4)
"""

from sims.runtime.processes.channel import ProcessesChannel, processes_sum
from sims.runtime.processes.messages import ClientFactory, WorkerClients
from sims.runtime.processes.supervisor import WorkersFailed

__all__ = ["ClientFactory", "ProcessesChannel", "WorkerClients", "WorkersFailed", "processes_sum"]
