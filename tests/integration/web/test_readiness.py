"""A service whose database has no schema is not ready; see `tests/faults/test_http_without_the_primary` for outages."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from aftermind import Settings
from tests.support.deployed_service import serving
from tests.support.servers import Servers, psql


@pytest.fixture
def empty_database_url(servers: Servers) -> Iterator[str]:
    """A database without tables, as agents connect to it."""
    name = f"empty_{secrets.token_hex(4)}"
    psql(servers.endpoints.admin_url, f"CREATE DATABASE {name}")
    yield urlunsplit(urlsplit(servers.endpoints.app_url)._replace(path=f"/{name}"))
    psql(servers.endpoints.admin_url, f"DROP DATABASE {name} WITH (FORCE)")


def test_a_service_on_a_database_without_the_schema_is_not_ready(
    servers: Servers, empty_database_url: str, tmp_path: Path
) -> None:
    settings = Settings(
        database_url=empty_database_url,
        broker_url=servers.redis_url,
        redis_prefix=f"ready-{secrets.token_hex(4)}:",
        state_dir=tmp_path,
        embedder="hash",
    )
    with serving(settings, tmp_path / "log") as url:
        answer = httpx.get(f"{url}/readyz", timeout=20, trust_env=False)

    assert answer.status_code == 503
    assert answer.json()["parts"]["redis"]["state"] == "ok"
    assert "aftermind migrate" in answer.json()["parts"]["store"]["detail"]
