"""How an algorithm's queries reach simulated clients: through real machines, or plainly and fast.

    channel = secure_sum(algorithm, learners, Setting(trust="curious_server"))
    run = Run(algorithm, channel, algorithm.start(model))
    report = run.round()

`insecure_plain_sum` takes the same arguments and gives the same numbers without any protection.
"""

from sims.channels.channel import ObservedChannel, SessionChannel
from sims.channels.dropouts import Law
from sims.channels.log import Log
from sims.channels.plain import insecure_plain_sum
from sims.channels.secure import secure_sum
from sims.channels.setting import Fate, Setting, nobody_missing
from sims.channels.tampering import Tamper

__all__ = [
    "Fate",
    "Law",
    "Log",
    "ObservedChannel",
    "SessionChannel",
    "Setting",
    "Tamper",
    "insecure_plain_sum",
    "nobody_missing",
    "secure_sum",
]
