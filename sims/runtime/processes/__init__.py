"""Sums among real worker processes, over TLS.

clients = Clients(make, shared, owned)  # `make(shared, owned of some)` makes the learners of a worker
channel = processes_sum(algorithm, learners, Setting(), clients=clients, workers=4)
"""

from sims.runtime.processes.channel import ProcessesChannel, processes_sum
from sims.runtime.processes.office import WorkersFailed
from sims.runtime.processes.orders import Clients, Household

__all__ = ["Clients", "Household", "ProcessesChannel", "WorkersFailed", "processes_sum"]
