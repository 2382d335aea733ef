"""What runs at the sites."""

from pfedfda.flower.client_app import app

__all__ = ["app"]
