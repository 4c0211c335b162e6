"""`aftermind export --to s3://…` and `aftermind ingest s3://…`, with a process that speaks S3."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import orjson
import pytest

from aftermind import errors
from aftermind.api.retention import archives
from tests.support.fork_server import run_module
from tests.support.s3 import s3_server
from tests.support.workers import environment


@pytest.fixture(scope="module")
def s3() -> Iterator[Mapping[str, str]]:
    with s3_server() as found:
        yield found


@pytest.fixture
def client(s3: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> object:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    made = boto3.client("s3")
    made.create_bucket(Bucket="keep")
    return made


def aftermind(store: Path, s3: Mapping[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    env = {
        **environment(f"sqlite:{store}", ""),
        "AFTERMIND_STATE_DIR": str(store.parent / "state"),
        "AFTERMIND_EMBEDDER": "off",
        **s3,
    }
    return run_module(["aftermind.cli", *arguments], env=env)


def test_a_user_goes_to_s3_and_comes_back(s3: Mapping[str, str], client: object, tmp_path: Path) -> None:
    asks = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    lines = [
        {"role": "user", "content": "I live in Zürich."},
        {"role": "assistant", "content": None, "tool_calls": [asks]},
        {"role": "tool", "content": "18 degrees", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Warm.", "name": "bot"},
    ]
    file = tmp_path / "chat.jsonl"
    described = {"session_id": "s1", "agent_id": "guide", "save": ["history"], "metadata": {"k": [1]}}
    later = [{"role": "user", "content": "Until later.", "expires_at": "2199-01-01T00:00:00Z"}]
    talks = [{**described, "messages": lines}, {"session_id": "s1", "messages": later}]
    file.write_bytes(b"\n".join(orjson.dumps({"user_id": "ann", **talk}) for talk in talks))
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    assert aftermind(first, s3, "ingest", str(file)).returncode == 0

    exported = aftermind(first, s3, "export", "--user", "ann", "--to", "s3://keep/of/ann.json")
    brought = [aftermind(second, s3, "ingest", "s3://keep/of/ann.json") for _ in range(2)]
    again = aftermind(second, s3, "export", "--user", "ann")

    assert exported.returncode == 0, exported.stderr
    assert [each.returncode for each in brought] == [0, 0], brought[0].stderr
    assert "5 new" in brought[0].stdout
    stored = client.get_object(Bucket="keep", Key="of/ann.json")  # type: ignore[attr-defined]
    parts = ("scope", "role", "content", "name", "metadata", "occurred_at", "keep", "expires_at")
    wanted, found = (
        [[each[part] for part in parts] for each in orjson.loads(text)["episodes"]]
        for text in (stored["Body"].read(), again.stdout)
    )
    assert found == wanted
    assert [each[2] for each in found] == ["I live in Zürich.", "", "18 degrees", "Warm.", "Until later."]
    assert (found[0][0]["agent_id"], found[0][6], found[1][4]["tool_calls"]) == ("guide", ["history"], [asks])


@pytest.mark.parametrize(("url", "reason"), [("s3://nobodys/ann.json", "NoSuchBucket"), ("s3://keep/", "name an obj")])
def test_a_place_that_takes_nothing_is_named(
    s3: Mapping[str, str], client: object, tmp_path: Path, url: str, reason: str
) -> None:
    done = aftermind(tmp_path / "a.db", s3, "export", "--user", "ann", "--to", url)

    assert done.returncode != 0
    assert reason in " ".join(done.stderr.split())
    assert "deleted" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", ["s3://keep", "s3://keep/of/", "s3:///ann.json", "s3://"])
def test_an_address_that_names_no_object_is_refused(url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="name an object"):
        archives.open_object(url)


async def test_an_object_that_is_not_there_cannot_be_read(client: object) -> None:
    archive, name = archives.open_object("s3://keep/of/none.json")

    with pytest.raises(errors.ArchiveUnavailable, match=r"NoSuchKey.*Nothing was read"):
        await archive.read(name)
