"""An S3-compatible store keeps what goes: a real HTTP server that speaks S3, and refuses when it is told to."""

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import boto3
import orjson
import pytest

from aftermind import errors
from tests.integration.retention.test_retention import contents, grow_old
from tests.support.learning import Learning
from tests.support.s3 import s3_server

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
OLD = timedelta(days=90)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty S3, which boto3 finds as a user would tell it."""
    with s3_server() as found:
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        yield


async def test_what_goes_is_an_object_of_the_bucket(opened: Opened, user: str, store: None) -> None:
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
    opened: Opened, user: str, store: None, monkeypatch: pytest.MonkeyPatch
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
