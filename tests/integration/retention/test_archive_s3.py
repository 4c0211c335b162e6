"""An S3-compatible store keeps what goes: a real HTTP server that speaks S3, and refuses when it is told to."""

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import orjson
import pytest

from aftermind import errors
from tests.integration.retention.test_retention import contents, grow_old
from tests.support.learning import Learning

boto3 = pytest.importorskip("boto3", reason="the extra s3 is not installed")
moto_server = pytest.importorskip("moto.server", reason="moto[server] serves S3 here; it is not among the pinned tools")

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
OLD = timedelta(days=90)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty S3 on a port of its own, which boto3 finds as a user would tell it."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield f"http://{host}:{port}"
    server.stop()


async def test_what_goes_is_an_object_of_the_bucket(opened: Opened, user: str, store: str) -> None:
    client = boto3.client("s3")
    client.create_bucket(Bucket="keep")
    async with opened(extractor="off") as learnt:
        await learnt.learn(user, ["Once.", "Twice."])
        await grow_old(learnt, user, days=100)
        await learnt.memory.retention.set(max_age=OLD, archive="s3://keep/of/acme")

        done = await learnt.memory.retention.run()

        [found] = client.list_objects_v2(Bucket="keep", Prefix="of/acme/default/")["Contents"]
        body = client.get_object(Bucket="keep", Key=found["Key"])["Body"].read()
        assert [orjson.loads(line)["content"] for line in body.splitlines()] == ["Once.", "Twice."]
        assert (done.episodes, done.archived) == (2, 2)
        assert await contents(learnt, user) == []


async def test_without_the_bucket_or_without_the_store_nothing_goes(
    opened: Opened, user: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(extractor="off") as learnt:
        await learnt.learn(user, ["Once."])
        await grow_old(learnt, user, days=100)
        await learnt.memory.retention.set(max_age=OLD, archive="s3://nobodys/of/acme")

        with pytest.raises(errors.ArchiveUnavailable, match="NoSuchBucket"):
            await learnt.memory.retention.run()
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{nobody.getsockname()[1]}")
            with pytest.raises(errors.ArchiveUnavailable, match="Could not connect"):
                await learnt.memory.retention.run()

        assert await contents(learnt, user) == ["Once."]
