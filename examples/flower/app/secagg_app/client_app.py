"""The ClientApp of secagg, for stock SuperNodes. Nodes that are `secagg join --flower` never run it."""

from sims.engines.flower.client_app import app

__all__ = ["app"]
