"""Keys of the HTTP service on every store: made, checked, listed, revoked, expired, and signing stream tokens."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from aftermind import Settings, errors
from aftermind.sync import Memory
from aftermind.types.api_key import Right
from tests.conformance.conftest import Operated
from tests.support.deployed_service import serving


async def test_a_key_is_valid_until_it_is_revoked(operated: Operated) -> None:
    keys, space = operated.memory.api_keys, operated.memory.namespace
    made, text = await keys.create("agent", rights=["read"])

    found = await keys.check(text)

    assert found is not None
    assert (found.id, found.namespace, found.rights) == (made.id, space, frozenset({Right.READ}))
    assert [each.id for each in await keys.list()] == [made.id]
    assert await keys.list(namespace="elsewhere") == []
    assert await keys.any()
    assert not await keys.revoke(made.id, namespace="elsewhere")
    assert await keys.revoke(made.id)
    assert not await keys.revoke(made.id)
    assert await keys.check(text) is None
    assert [(each.is_valid, each.revoked_at is None) for each in await keys.list()] == [(False, False)]


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: text + "x", lambda text: text.upper()])
async def test_a_text_that_is_not_the_key_is_refused(operated: Operated, change: object) -> None:
    _, text = await operated.memory.api_keys.create("agent")
    assert callable(change)

    assert await operated.memory.api_keys.check(change(text)) is None


async def test_a_key_that_is_over_already_is_refused_and_a_stream_token_ends_with_its_key(operated: Operated) -> None:
    keys = operated.memory.api_keys
    with pytest.raises(errors.InvalidKey, match="over already"):
        await keys.create("agent", expires_at=datetime.now(UTC) - timedelta(hours=1))
    assert await keys.list() == []
    made, _ = await keys.create("agent", expires_at=datetime.now(UTC) + timedelta(hours=1))
    token = await keys.create_stream_token(made.id, user_id="alice")

    found = await keys.check_stream_token(token)
    await keys.revoke(made.id)

    assert found is not None
    assert (found[0].id, found[1].user_id) == (made.id, "alice")
    assert await keys.check_stream_token(token) is None


def test_a_key_of_a_store_of_one_process_opens_one_namespace_over_http(tmp_path: Path) -> None:
    settings = Settings(
        database_url=f"sqlite:{tmp_path}/bot.db", state_dir=tmp_path / "state", embedder="off", extractor="off"
    )
    texts = {}
    with Memory(settings=settings) as memory:
        for space in ("ours", "theirs"):
            memory.remember(f"I live in {space}.", user_id="alice", namespace=space).stored(30)
            texts[space] = memory.api_keys.create("agent", namespace=space)[1]
        (theirs,) = memory.history(user_id="alice", namespace="theirs")

    with serving(settings, tmp_path / "web.log") as url, httpx.Client(base_url=url, timeout=20) as client:
        mine = {"Authorization": f"Bearer {texts['ours']}"}
        answered = client.get("/v1/users/alice/episodes", headers=mine)

        assert client.get("/v1/users/alice/episodes").status_code == 401
        assert client.get("/v1/users/alice/episodes", headers={"Authorization": "Bearer am_x_y"}).status_code == 401
        assert answered.status_code == 200
        assert "I live in ours." in answered.text
        assert "theirs" not in answered.text
        job = client.get(f"/v1/jobs/{theirs.id}", headers=mine)
        assert job.status_code == 404
