"""Property tests draw the same examples in every run: a red suite means a change, not bad luck.

HYPOTHESIS_PROFILE=explore draws new ones, for those who look for what the fixed ones miss.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# A shell starts a command in the background with SIGINT ignored. Tests of Ctrl-C would wait for ever there.
signal.signal(signal.SIGINT, signal.default_int_handler)
