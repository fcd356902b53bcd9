"""How an algorithm's queries reach simulated clients: through real machines, or plainly and fast.

    channel = secure_sum(algorithm, learners, Setting(trust="curious_server"))
    run = Run(algorithm, channel, algorithm.start(model))
    report = run.round()

`insecure_plain_sum` takes the same arguments and gives the same numbers without any protection.
"""

from sims.runtime.channel import ObservedChannel, SessionChannel
from sims.runtime.plain import insecure_plain_sum
from sims.runtime.secure import secure_sum
from sims.runtime.setting import Fate, Law, Setting, nobody_missing
from sims.runtime.tampering import Tamper

__all__ = [
    "Fate",
    "Law",
    "ObservedChannel",
    "SessionChannel",
    "Setting",
    "Tamper",
    "insecure_plain_sum",
    "nobody_missing",
    "secure_sum",
]
