"""Makes every client of a process lie as $SECAGG_TEST_LIE says; python imports it if it is on the path."""

from __future__ import annotations

import os
from unittest import mock

from secagg.net import client
from tests.sims.lying_clients import made

mock.patch.object(client, "ClientMachine", made(os.environ["SECAGG_TEST_LIE"], liars=None)).start()
