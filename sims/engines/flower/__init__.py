"""Training on Flower: a ServerApp that `flwr run` starts, and nodes that are processes of `secagg join`.

`fleet_node`  a node that is our own process. It executes no code that comes from the SuperLink.
`relay`       the fallback, for stock SuperNodes: a ClientApp takes letters to `secagg join` on the same host.
`server_app`  the ServerApp.
"""

from typing import Final

LETTER: Final = "letter"
RECORD: Final = "secagg"  # the record of a message in which the letter is
MESSAGE_TYPE: Final = "query.secagg"
