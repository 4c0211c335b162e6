"""The OpenAPI document of the service, for tests whose parameters are its operations: made once in a process."""

from typing import Any

from aftermind import Settings
from aftermind.web import create_app

DOCUMENT: dict[str, Any] = create_app(Settings(database_url="inmemory")).openapi()  # Any: JSON
