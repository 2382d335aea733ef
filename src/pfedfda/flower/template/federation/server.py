"""What runs at the server."""

from pfedfda.flower.server_app import app

__all__ = ["app"]
