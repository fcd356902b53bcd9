"""Makes every client of a process lie as $SECAGG_TEST_LIE says; python imports it if it is on the path."""

from __future__ import annotations

import os
from unittest import mock

from secagg.net import open_client_and_server
from tests.sims.lying_clients import made

lie = made(os.environ["SECAGG_TEST_LIE"], liars=None)
mock.patch.object(open_client_and_server, "ClientMachine", lie).start()
