"""The server of the hospitals. Run it as `python server.py 0.0.0.0:7443`; after a crash, run it again."""

import sys

import torch
from model import TERMS

from sims.deploy.training import train_as_server

FILES = {"key": "server.key", "certificate": "server.pem", "authority": "authority.pem"}
FILES |= {"registry": "registry.secagg", "run": "run"}

with train_as_server(TERMS, listen=sys.argv[1], min_cohort=3, files=FILES) as run:
    for done in run:
        print("round", done.number, "clients", done.clients, done.failure or dict(done.facts), flush=True)
torch.save(run.model.state_dict(), "model.pt")
