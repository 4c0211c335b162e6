"""The OpenAPI document of the service, for tests whose parameters are its operations: made once in a process."""

from typing import Any

from aftermind.web.app import create_routes

DOCUMENT: dict[str, Any] = create_routes().openapi()  # Any: JSON
