"""Channels: a channel sends an algorithm's queries to simulated clients and returns sums of their answers.

    channel = secure_sum(algorithm, learners, Setting(trust="curious_server"))
    run = Run(algorithm, channel, algorithm.start(model))
    report = run.round()

`learners` has the object that trains for each client, by client id. `secure_sum` runs the real protocol, with
the server and all clients in this process. `insecure_plain_sum` computes the same totals (apart from noise)
from the same arguments, faster and without any protection.
"""

from sims.runtime.plain import insecure_plain_sum
from sims.runtime.residue_tampering import Tamper
from sims.runtime.secure import secure_sum
from sims.runtime.session_channel import ObservedChannel, SessionChannel
from sims.runtime.sum_and_dropout_settings import DropoutLaw, DropoutSchedule, Setting, no_dropouts

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
