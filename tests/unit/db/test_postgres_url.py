"""The file that a Postgres URL names for its password."""

from pathlib import Path

import pytest

from aftermind.db.postgres_url import split_password_file, with_password_file

FILE = Path("/run/secrets/a b")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://role@db/app",
        "postgresql://role@h1:5432,h2:5433/app?sslmode=verify-full&sslrootcert=%2Fca.pem",
        "postgresql:///app?host=/var/run/postgresql",
    ],
)
def test_a_url_without_password_names_the_file_and_the_driver_gets_the_url_as_it_was(url: str) -> None:
    named = with_password_file(url, FILE)

    assert split_password_file(named) == (url, FILE)
    assert with_password_file(named, Path("/other")) == named


@pytest.mark.parametrize("url", ["postgresql://role:word@db/app", "postgresql://role@db/app?password=word"])
def test_a_password_in_the_url_is_used_instead_of_the_file(url: str) -> None:
    assert with_password_file(url, FILE) == url
    assert split_password_file(url) == (url, None)
