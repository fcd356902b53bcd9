"""The part of a server that belongs to its operator: a component in the server's local/resources.json."""

from __future__ import annotations

from nvflare.apis.fl_component import FLComponent

from sims.engines.nvflare.cell_links import bound_links


class SecaggServer(FLComponent):  # type: ignore[misc]  # NVFlare has no types
    """Lets no site send in the name of the server, or of another site. NVFlare creates it in the server's
    processes of jobs as well, where it has no effect: sites have no links to them."""

    def __init__(self) -> None:
        super().__init__()
        bound_links()
