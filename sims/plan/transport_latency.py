"""How long the stages of sums wait for what carries their messages: our own TLS connections, or an engine.

In a stage, the server sends each client a message and waits for the replies. A sum has two stages (mask,
reveal), or three under `malicious_server` (mask, confirm, reveal). A session starts with two more (advertise,
share), or three with hybrid keys (deposit). An engine needs two exchanges to open a client's TLS connection.
Every stage takes at least the latency of one exchange, however few bytes it sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from secagg.hybrid_keys import KeyAgreement
from secagg.trust_levels import Trust
from sims.plan.cost_plan import CostPlan


@dataclass(frozen=True)
class MeasuredTransport:
    """A way to carry messages, and the `seconds` that a stage took with it, without computation."""

    name: str
    meaning: str
    seconds: float
    origin: str  # where `seconds` comes from
    connection_exchanges: int = 0  # of an engine, to open the TLS connection of a client
    faster: str = ""  # the transport that does the same in less time


# The only place with these figures. All are for one host with two cores and small models. Those of Flower,
# NVFlare and TLS are for 5 clients. Between hosts, the network comes on top.
TRANSPORTS: Final = {
    each.name: each
    for each in (
        MeasuredTransport(
            "tls",
            "connections of secagg serve and join",
            0.01,
            "a next sum under malicious_server took 0.03 s, in three stages",
        ),
        MeasuredTransport(
            "flower",
            "secagg join --flower",
            1.0,
            "0.98 s, the median over the sums of 10 rounds of rfa, through a SuperLink with TLS",
            connection_exchanges=2,
            faster="tls",
        ),
        MeasuredTransport(
            "flower-relay",
            "stock SuperNodes with secagg join --relay",
            8.0,
            "7 s to 9 s a stage: a SuperNode looks for messages every 3 s, and starts a process for each",
            connection_exchanges=2,
            faster="flower",
        ),
        MeasuredTransport(
            "nvflare",
            "a job of NVFlare",
            0.11,
            "0.11 s, the median over sums of 10 rounds of rfa; a task would take task_request_interval, 2 s",
            connection_exchanges=2,
            faster="tls",
        ),
        MeasuredTransport("ray", "a simulation on Ray", 0.002, "an empty call of two actors took 1.5 ms"),
    )
}


@dataclass(frozen=True)
class TransportCost:
    """What a transport adds to the rounds of a plan, besides training, computation and bytes."""

    transport: MeasuredTransport
    rounds: int
    stages_per_sum: int
    sum_stages: int  # most stages of all sums of a round
    setup_stages: int  # at the start of a session
    rounds_per_session: int
    message_bytes: int  # of the longest message of a sum

    @property
    def seconds_per_round(self) -> float:
        """The seconds of a round, with its part of the start of a session."""
        setup = self.setup_stages / self.rounds_per_session if self.sum_stages else 0
        return (self.sum_stages + setup) * self.transport.seconds

    @property
    def seconds_with_session(self) -> float:
        """The seconds of a round that starts a session, because its clients are not those of the last one."""
        return (self.sum_stages + self.setup_stages) * self.transport.seconds if self.sum_stages else 0.0

    @property
    def seconds(self) -> float:
        """The seconds of all rounds, with the start of every session and of the connection."""
        if not self.sum_stages:
            return 0.0
        sessions = ceil(self.rounds / self.rounds_per_session)
        stages = self.rounds * self.sum_stages + sessions * self.setup_stages
        return (stages + self.transport.connection_exchanges) * self.transport.seconds

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.transport.name,
            "stage_seconds": self.transport.seconds,
            "origin": self.transport.origin,
            "rounds": self.rounds,
            "stages_per_sum": self.stages_per_sum,
            "stages_per_round": self.sum_stages,
            "setup_stages": self.setup_stages,
            "connection_exchanges": self.transport.connection_exchanges,
            "seconds_per_round": self.seconds_per_round,
            "seconds_with_session": self.seconds_with_session,
            "seconds": self.seconds,
            "message_bytes": self.message_bytes,
        }


def transport_cost(plan: CostPlan, transport: str, *, rounds: int) -> TransportCost:
    """Return what the transport of that name adds to `rounds` rounds. It ignores drop-outs: a stage that
    waits for a lost client lasts until its deadline."""
    stages = 3 if plan.trust is Trust.MALICIOUS else 2
    return TransportCost(
        transport=TRANSPORTS[transport],
        rounds=rounds,
        stages_per_sum=stages,
        sum_stages=stages * plan.sums_per_round,
        setup_stages=2 if plan.key_agreement is KeyAgreement.X25519 else 3,
        rounds_per_session=plan.rounds_per_session,
        message_bytes=max((max(each.bytes_up, each.broadcast_bytes) for each in plan.sums), default=0),
    )
