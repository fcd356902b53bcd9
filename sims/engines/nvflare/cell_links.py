"""Which frames a cell of NVFlare takes by which link. NVFlare believes what a frame says of its sender.

NVFlare's server compares the sender with the token in a frame only if the token is that of a site which is
registered now. So a site can send frames in the server's name through the server: with a token from before it
registered again, or with the server's own, which the server sends to every site. And a frame can name an
address: a site that gets it opens a connection to there, on which nobody compares senders.

A frame is a message, or a part of one, for the cell or to be passed on. So these rules hold for streams too:

- A site takes frames in the name of the server, or of the server's processes, only by the links that it has
  opened to the server and to its own parent process. It opens none to where a frame says.
- The parent process of a site takes frames for itself only from the server, and from its own site.
- The server takes frames from outside only in the name of the site at the other end of the link. NVFlare
  compares this site with its certificate if connections have certificates at both ends, as by default.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.sfm.conn_manager import NullConnection

from sims.config_problems import ConfigError, shown

_process_any: Final = CoreCell.process_message


def bound_links() -> None:
    """Bound what cells of this process take. This has to be called before NVFlare makes them."""
    if CoreCell.process_message is not _process:
        CoreCell.process_message = _process


def check_links(cell: CoreCell) -> None:
    """Raise `ConfigError` if `cell` takes more."""
    if getattr(cell.process_message, "__func__", None) is not _process:
        raise ConfigError(
            "other sites of NVFlare could send in the name of its server: list SecaggSite in the components "
            "of resources.json, and nothing else that changes cells of NVFlare"
        )


def _process(cell: CoreCell, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
    """Hand a frame on to NVFlare, unless it is to be refused."""
    wrong = _refusal(cell, endpoint, connection, message.headers)
    if wrong is not None:
        logging.getLogger(__name__).warning("refused a frame: %s", wrong)
        return
    if not cell.my_info.is_on_server:
        message.headers.pop(MessageHeaderKey.CONN_URL, None)
    _process_any(cell, endpoint, connection, app_id, message)


def _refusal(cell: CoreCell, endpoint: Any, connection: Any, headers: Any) -> str | None:
    """Return what is wrong with a frame, or None. A frame without a link is of this process itself."""
    if connection is None or isinstance(connection, NullConnection):
        return None
    origin = headers.get(MessageHeaderKey.ORIGIN) if isinstance(headers, dict) else None
    if type(origin) is not str or FQCN.validate(origin) or FQCN.normalize(origin) != origin:
        return f"{shown(origin)} is no name of a cell"
    family, link = _family(origin), connection.connector.handle
    if not cell.my_info.is_on_server:
        return _refusal_of_site(cell, family, link, headers)
    if not cell.my_info.is_root or link in _handles(cell.int_listener):
        return None
    if family in (FQCN.ROOT_SERVER, "") or family != _family(endpoint.name):
        return f"{shown(endpoint.name)} may not send in the name of {shown(origin)}"
    return None


def _refusal_of_site(cell: CoreCell, family: str, link: str, headers: dict[str, Any]) -> str | None:
    is_upstream = link in _handles(cell.bb_ext_connector, cell.bb_int_connector)
    if family == FQCN.ROOT_SERVER:
        return None if is_upstream else "it is in the name of the server, but not from there"
    is_parent = cell.create_internal_listener
    is_for_me = headers.get(MessageHeaderKey.DESTINATION) == cell.my_info.fqcn
    if is_parent and is_for_me and family != _family(cell.my_info.fqcn):
        return f"a cell of {shown(family)} has nothing to ask of this process"
    return None


def _family(name: str) -> str:
    """Return the first part of a cell's name: all cells of a site have the same."""
    return str(FQCN.split(name)[0])


def _handles(*connectors: Any) -> set[str]:
    return {each.handle for each in connectors if each is not None}
