"""The ServerApp of secagg, under a name of this app."""

from sims.engines.flower.server_app import app

__all__ = ["app"]
