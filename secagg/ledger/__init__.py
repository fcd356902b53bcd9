"""Ledgers: what was asked, answered and released, and what it cost, in a file that outlives every session.

`ClientLedger` is a client's memory on disk, `ServerLedger` a server's record, `read_ledger` is for auditors.
"""

from secagg.ledger.chain import Head, Owner, Role, Row
from secagg.ledger.client import ClientLedger
from secagg.ledger.ledger import Reading, read_ledger
from secagg.ledger.server import ServerLedger

__all__ = ["ClientLedger", "Head", "Owner", "Reading", "Role", "Row", "ServerLedger", "read_ledger"]
