"""A hospital. Run it as `python client.py 1 server:7443`; after a crash, run it again."""

import sys

import torch
from model import TERMS, patients

from sims.deploy.training import train_as_client

me, server = int(sys.argv[1]), sys.argv[2]
OWN = {"key": "key", "certificate": "pem", "ledger": "ledger", "state": "state"}
FILES = {name: f"hospital-{me}.{ending}" for name, ending in OWN.items()}
FILES |= {"server_certificate": "server.pem", "authority": "authority.pem", "registry": "registry.secagg"}

models = train_as_client(TERMS, patients(me), member=me, server=server, files=FILES)
torch.save([models.common.state_dict(), models.personal.state_dict()], f"hospital-{me}.pt")
