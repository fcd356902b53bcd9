"""Channels: each sends the queries of a learning algorithm to simulated clients and returns the sums.

    channel = secure_sum(algorithm, learners, Setting(trust="curious_server"))
    run = Run(algorithm, channel, algorithm.start(model))
    report = run.round()

`secure_sum` runs the real protocol, with the server and all clients in this process. `insecure_plain_sum`
takes the same arguments and computes the same totals (apart from noise) faster, without any protection.
"""

from sims.runtime.cohort_setting import DropoutLaw, DropoutSchedule, Setting, no_dropouts
from sims.runtime.interfaces import ObservedChannel
from sims.runtime.plain import insecure_plain_sum
from sims.runtime.residue_tampering import Tamper
from sims.runtime.secure import secure_sum
from sims.runtime.session_channel import SessionChannel

__all__ = [
    "DropoutLaw",
    "DropoutSchedule",
    "ObservedChannel",
    "SessionChannel",
    "Setting",
    "Tamper",
    "insecure_plain_sum",
    "no_dropouts",
    "secure_sum",
]
