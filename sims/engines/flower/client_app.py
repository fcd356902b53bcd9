"""A ClientApp for stock SuperNodes, which only takes letters to `secagg join --relay` on the same host.

    flower-supernode ... --node-config 'secagg-socket="/run/secagg/client-4.sock"'

It uses Flower's public API alone, and keeps nothing in Flower's `Context`: a reply is sent before a context
is saved, so that a crash in between would put back the state of a client.
"""

from __future__ import annotations

from typing import Final

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sims.config_problems import ConfigError
from sims.engines.flower import LETTER, RECORD
from sims.engines.flower.relay import take_to_client

app = ClientApp()
SOCKET: Final = "secagg-socket"


@app.query("secagg")
def relay(message: Message, context: Context) -> Message:
    """Take the letter in a message to the client, and return its reply."""
    path = context.node_config.get(SOCKET)
    if not isinstance(path, str):
        raise ConfigError(f"--node-config: {SOCKET}: name the socket of secagg join --relay")
    record = message.content[RECORD]
    letter = record[LETTER] if isinstance(record, ConfigRecord) else None
    if not isinstance(letter, bytes):
        raise ConfigError("the message has no letter: does the ServerApp belong to this ClientApp?")
    reply = take_to_client(path, letter)
    return Message(RecordDict({RECORD: ConfigRecord({LETTER: reply})}), reply_to=message)
