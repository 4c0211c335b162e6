"""The service: `uvicorn --factory aftermind.web:create_app`."""

from aftermind.web.app import create_app

__all__ = ["create_app"]
