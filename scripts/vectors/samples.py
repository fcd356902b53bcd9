"""One well-formed message of every type."""

from __future__ import annotations

from secagg import messages as m
from secagg.trust_levels import Trust


def sample_messages(context: bytes) -> list[m.Message]:
    """All but the invitation under `context`; their sets are over a cohort of four."""
    return [
        m.Invitation(
            b"", str(Trust.MALICIOUS), "x25519", 3, bytes(range(32)), bytes(range(32, 64)), bytes(32)
        ),
        m.KeyList(context, 3, b"adverts"),
        m.Delivery(context, b"parcels"),
        m.Query(context, 0, 5, "vector", b"\x0f", b"payload"),
        m.Survivors(context, 0, b"\x0d"),
        m.Confirmations(context, 0, b"signatures"),
        m.GroupClosed(context, 0),
        m.Farewell(context),
        m.Neighbours(context, 1 << 20, 3, bytes(range(32)), b"neighbours", b""),
        m.Advertisement(context, b"advert"),
        m.Shares(context, b"envelopes", b"", b"tags", b""),
        m.MaskedInput(context, 63, b"data", b"words", b""),
        m.Confirmation(context, 0, bytes(range(64))),
        m.Reveal(context, 0, b"\x0f", b"shares", b"hidden hashes", b""),
        m.Decline(context, 0),
        m.Leave(context),
        m.Lost(context, b"\x08"),
        m.Deposit(context, b"deposits", b""),
    ]
