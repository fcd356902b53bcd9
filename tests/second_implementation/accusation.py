"""The evidence that a server makes of a lie that it found (sections 13.4 and 13.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.second_implementation import crypto
from tests.second_implementation.crypto import tagged
from tests.second_implementation.encoding import u32
from tests.second_implementation.evidence import Evidence, Statement
from tests.second_implementation.lies import Conviction
from tests.second_implementation.unmask import opened

if TYPE_CHECKING:
    from tests.second_implementation.server import Server


def accuse(server: Server, conviction: Conviction) -> Evidence | None:
    """The evidence for a conviction; without signatures, and for mere disputes, there is none."""
    if not server.layout.signed or conviction.offence == "dispute":
        return None
    statements, values = _proof(server, conviction)
    return Evidence(
        conviction.offence,
        conviction.client,
        server.invitation,
        server.key_list,
        tuple(statements),
        tuple(values),
    )


def _proof(server: Server, c: Conviction) -> tuple[list[Statement], list[bytes]]:
    """The statements and values of an offence."""
    k = server.sum.k
    match c.offence:
        case "wrong share":
            dealer = c.others[0]
            return [_tags(server, dealer), _reveal(server, c.client)], [_accepted(server, c.client)]
        case "false dealing":
            rows = [_shown_row(server, c, holder) for holder in c.others]
            return [_tags(server, c.client)], [u32(k), u32(c.column), *rows]
        case "false count":
            return [_input(server, c.client)], [c.secret]
        case "false word":
            return _false_word(server, c)
        case "false deposit":
            values = [u32(c.others[0]), c.secret, _accepted(server, c.client), u32(k)]
            return [_deposit(server, c.client)], values
        case "many disputes":
            return [_input(server, client) for client in (c.client, *c.others)], []
    raise AssertionError(f"no evidence of {c.offence}")


def _false_word(server: Server, c: Conviction) -> tuple[list[Statement], list[bytes]]:
    statements, values = [_input(server, c.client)], [u32(c.others[0]), c.secret]
    if server.layout.hybrid:
        (missing,), k = c.others, server.sum.k
        record = server.deposits[missing][c.client][k]
        secret = opened(server.session, c.secret, missing, c.client, k, record)
        assert secret is not None
        statements.append(_deposit(server, c.client))
        values += [_accepted(server, c.client), secret]
    return statements, values


def _shown_row(server: Server, c: Conviction, holder: int) -> bytes:
    """What a holder revealed of the accused's row, as evidence of false dealing lists it."""
    row = server.sum.reveals[holder][c.client]
    hashes = row.hashes(server.session, c.client, holder, server.sum.k, server.layout.columns)
    others = b"".join(digest for column, digest in enumerate(hashes) if column != c.column)
    return u32(holder) + row.shares[c.column] + others


def _accepted(server: Server, holder: int) -> bytes:
    return b"".join(u32(dealer) + digest for dealer, digest in server.accepted(holder).items())


def _receipt(server: Server, holder: int) -> bytes:
    return crypto.receipt(server.accepted(holder).items())


# --- Statements, with the fields of 4.5


def _tags(server: Server, dealer: int) -> Statement:
    dealing = server.dealings[dealer]
    return Statement(dealer, "share tags", dealing.tags_signature, (server.session, dealing.tags))


def _sum_fields(server: Server) -> list[bytes]:
    current = server.sum
    roster = server.bitmap(current.roster)
    return [server.session, u32(current.k), current.query, current.spec.digest, roster]


def _input(server: Server, client: int) -> Statement:
    message = server.sum.messages[client, "MaskedInput"]
    packed, words = message.data(1), message.data(2)
    parts = tagged("masked parts", packed[:-8])
    fields = [*_sum_fields(server), _receipt(server, client), parts, packed[-8:], words]
    return Statement(client, "masked input", message.data(3), tuple(fields))


def _reveal(server: Server, client: int) -> Statement:
    message, current = server.sum.messages[client, "Reveal"], server.sum
    survivors, removed = server.bitmap(current.survivors), bytes(current.surplus)
    shown = [message.data(index) for index in (1, 2, 3)]
    fields = [*_sum_fields(server), survivors, removed, _receipt(server, client), *shown]
    return Statement(client, "reveal", message.data(4), tuple(fields))


def _deposit(server: Server, client: int) -> Statement:
    message = server.deposit_messages[client]
    fields = (server.session, _receipt(server, client), message.data(0))
    return Statement(client, "deposit", message.data(1), fields)
