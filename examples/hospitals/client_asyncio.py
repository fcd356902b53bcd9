"""A hospital whose program runs asyncio. It trains in a thread; the event loop does other work meanwhile.
Ctrl-C ends both; to go on, run it again."""

import asyncio
import sys
import threading

import torch
from model import TERMS, patients

from sims.deploy.training import train_as_client

me, server = int(sys.argv[1]), sys.argv[2]
OWN = {"key": "key", "certificate": "pem", "ledger": "ledger", "state": "state"}
FILES = {name: f"hospital-{me}.{ending}" for name, ending in OWN.items()}
FILES |= {"server_certificate": "server.pem", "authority": "authority.pem", "registry": "registry.secagg"}


async def main() -> None:
    stop = threading.Event()
    call = asyncio.to_thread(
        train_as_client, TERMS, patients(me), member=me, server=server, files=FILES, stop=stop
    )
    training = asyncio.create_task(call)
    try:
        while not training.done():
            await asyncio.wait({training}, timeout=1)  # the other work of this program
    finally:
        stop.set()  # Ctrl-C cancels this task, but not the thread, for which asyncio.run waits
    models = training.result()
    torch.save([models.common.state_dict(), models.personal.state_dict()], f"hospital-{me}.pt")


asyncio.run(main())
