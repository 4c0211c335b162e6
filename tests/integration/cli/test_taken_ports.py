"""A server whose port another program has does not start, and the error names the remedy."""

import socket

import pytest
from typer.testing import CliRunner

from aftermind import errors
from aftermind.cli import FAMILIES, make_app_for


@pytest.mark.parametrize("command", ["web", "flower"])
def test_a_taken_port_is_named_with_a_remedy(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERMIND_DATABASE_URL", "inmemory")
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "operator:a long password")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = CliRunner().invoke(make_app_for(FAMILIES), [command, "--port", str(port)])

    assert isinstance(done.exception, errors.StackError)
    assert f"its port {port} is in use by another program" in str(done.exception)
    assert "choose another port" in str(done.exception)
