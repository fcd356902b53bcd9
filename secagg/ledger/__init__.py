"""Ledgers: files that record which sums were asked, answered and released, and their privacy cost.

A client uses `ClientLedger` as its memory, a server records in `ServerLedger`, auditors call `read_ledger`.
"""

from secagg.ledger.base_ledger import Owner, Role
from secagg.ledger.chained_rows import Head, Row
from secagg.ledger.client_ledger import ClientLedger
from secagg.ledger.reader import Reading, read_ledger
from secagg.ledger.server_ledger import ServerLedger

__all__ = ["ClientLedger", "Head", "Owner", "Reading", "Role", "Row", "ServerLedger", "read_ledger"]
