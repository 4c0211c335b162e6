"""Errors of the driver, as users see them."""

import asyncpg
import pytest

from aftermind import errors
from aftermind.db.error_mapping import translated


def test_a_connection_that_the_server_ended_is_named_so() -> None:
    with (
        pytest.raises(errors.StoreUnavailable, match="the server ended the connection") as raised,
        translated("127.0.0.1:5432/aftermind"),
    ):
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    assert "state 15" not in str(raised.value)
