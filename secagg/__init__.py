"""Secure aggregation: a server learns the sum of its clients' vectors, but no single vector.

`sum_securely` is the simplest entry point. `ClientMachine` and `ServerMachine` are the two sides of the
protocol, without IO; `LocalSession` runs them in one process. A `Table` lists the kinds of sums, a `SumSpec`
describes one kind, and a `Part` one vector in it. A `Policy` says what a client requires of a session, and
`preflight` checks the settings of a session before it starts. `calibrate_vector`, `calibrate_counts` and
`calibrate_elements` compute how much noise a privacy `Goal` needs. `sum_rho` returns a sum's privacy cost.
"""

from secagg.client import ClientMachine
from secagg.client_memory import Memory, VolatileMemory
from secagg.differencing_rules import static
from secagg.distributed_noise import Noise, NoiseAssumptions
from secagg.events import Answer
from secagg.identity_registry import Registry, verify_registry
from secagg.keys import Identity
from secagg.ledger import ClientLedger, ServerLedger, read_ledger
from secagg.local_session import LocalSession, Stage, local_machines
from secagg.noise.elementwise_calibration import calibrate_counts, calibrate_elements
from secagg.noise.part_plan import Plan
from secagg.noise.privacy_goal import Goal, Orders
from secagg.noise.vector_calibration import calibrate_vector
from secagg.noise.zcdp_cost import Adjacency, sum_rho
from secagg.one_call_sum import SecureSum, sum_securely
from secagg.policy import Policy
from secagg.preflight import Preflight, preflight
from secagg.server import ServerMachine
from secagg.session_params import SessionParams
from secagg.sum_spec import L2, Count, LInf, Part, Residue, SumSpec, Table, Total
from secagg.trust_levels import Trust

__all__ = [
    "L2",
    "Adjacency",
    "Answer",
    "ClientLedger",
    "ClientMachine",
    "Count",
    "Goal",
    "Identity",
    "LInf",
    "LocalSession",
    "Memory",
    "Noise",
    "NoiseAssumptions",
    "Orders",
    "Part",
    "Plan",
    "Policy",
    "Preflight",
    "Registry",
    "Residue",
    "SecureSum",
    "ServerLedger",
    "ServerMachine",
    "SessionParams",
    "Stage",
    "SumSpec",
    "Table",
    "Total",
    "Trust",
    "VolatileMemory",
    "calibrate_counts",
    "calibrate_elements",
    "calibrate_vector",
    "local_machines",
    "preflight",
    "read_ledger",
    "static",
    "sum_rho",
    "sum_securely",
    "verify_registry",
]
