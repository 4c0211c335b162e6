"""Archives: a folder, or an S3-compatible store. Retention writes episodes to them; exports and imports use S3."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

import orjson

from aftermind import errors
from aftermind.types import Episode, Fact

RETRIED = "Nothing was deleted; the next run retries."  # what a failed write of retention means
CONNECT_SECONDS, READ_SECONDS, TRIES = 3.0, 10.0, 2


class Archive(Protocol):
    """A place that keeps files. `write` returns when the file is safe there, and not before."""

    async def write(self, name: str, data: bytes) -> None:
        """Keep a file. Raises `ArchiveUnavailable`, and then nothing may be deleted."""


def open_archive(url: str) -> Archive:
    """The archive at a path, `file:///…` or `s3://bucket/prefix`. Raises `InvalidSettings`; connects nothing."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return S3Archive(url, bucket=parts.netloc, prefix=parts.path.strip("/"))
    return FolderArchive(Path(unquote(parts.path) if parts.scheme == "file" else url))


def open_object(url: str) -> tuple["S3Archive", str]:
    """The archive of an object `s3://bucket/key`, and its name there. Raises `InvalidSettings`; connects nothing."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    folder, _, name = key.rpartition("/")
    if not bucket or not name:
        raise errors.InvalidSettings("url", url, "name an object: s3://bucket/key.")
    return S3Archive(url, bucket=bucket, prefix=folder), name


def settled(url: str) -> str:
    """The same archive as an absolute location, for processes with another working directory."""
    return url if "://" in url else str(Path(url).absolute())


def as_lines(episodes: Sequence[Episode], facts: Sequence[Fact]) -> bytes:
    """One JSON object per line: episodes, then the facts that are deleted with them."""
    rows: list[dict[str, Any]] = [  # Any: JSON
        {
            "kind": "episode",
            "id": str(each.id),
            **each.scope.labels(),
            "role": str(each.role),
            "name": each.name,
            "content": each.content,
            "metadata": dict(each.metadata),
            "occurred_at": each.occurred_at,
            "remembered_at": each.remembered_at,
            "position": each.position,
        }
        for each in episodes
    ]
    rows += [
        {
            "kind": "fact",
            "id": str(each.id),
            **each.scope.labels(),
            "subject": each.subject,
            "predicate": each.predicate,
            "object": each.object,
            "confidence": each.confidence,
            "valid_from": each.valid_from,
            "valid_to": each.valid_to,
            "recorded_at": each.recorded_at,
            "superseded_at": each.superseded_at,
            "sources": [str(source) for source in each.sources],
        }
        for each in facts
    ]
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def file_name(namespace: str, day: str, batch: str) -> str:
    """Path of a batch in its archive: by namespace and day."""
    return f"{quote(namespace, safe='')}/{day}/{batch}.jsonl"


class FolderArchive:
    """Files below a folder, readable by their owner alone."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def write(self, name: str, data: bytes) -> None:
        """Store a file: written to a temporary file, fsynced, renamed, and the folders fsynced too."""
        try:
            await asyncio.to_thread(self._write, self._root / name, data)
        except OSError as exc:
            raise errors.ArchiveUnavailable(str(self._root), exc.strerror or str(exc), RETRIED) from exc

    def _write(self, path: Path, data: bytes) -> None:
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = path.with_suffix(".part")
        try:
            partial.unlink(missing_ok=True)  # one that a crash left, or that another user has planted to read the rows
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise
        for folder in {path.parent, *(each.parent for each in made)}:
            _sync(folder)


class S3Archive:
    """Objects of a bucket, by boto3 (`pip install aftermind[s3]`); keys and endpoint as boto3 finds them.

    That is: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL_S3` for a store of your own, or a profile.
    """

    def __init__(self, url: str, *, bucket: str, prefix: str) -> None:
        if not bucket:
            raise errors.InvalidSettings("archive", url, "name a bucket: s3://bucket/prefix.")
        self._url, self._bucket, self._prefix = url, bucket, prefix
        self._client: Any = None  # Any: boto3 makes its clients' classes at run time

    async def write(self, name: str, data: bytes, *, remedy: str = RETRIED) -> None:
        """Put an object. The store acknowledges it with a checksum of what it has."""
        kind = "application/jsonl" if name.endswith(".jsonl") else "application/json"
        put = {"Body": data, "ContentType": kind, "ChecksumAlgorithm": "SHA256"}
        await self._call("put_object", name, remedy, **put)

    async def read(self, name: str) -> bytes:
        """Get an object, verified if the store has its checksum. Raises `ArchiveUnavailable`, also if there is none."""
        body: bytes = await self._call("get_object", name, "Nothing was read.", ChecksumMode="ENABLED")
        return body

    async def _call(self, operation: str, name: str, remedy: str, **more: Any) -> Any:  # Any: of an operation of S3
        key = f"{self._prefix}/{name}" if self._prefix else name
        try:
            return await asyncio.to_thread(self._run, operation, Bucket=self._bucket, Key=key, **more)
        except errors.AftermindError:
            raise
        except Exception as exc:  # boto3 raises classes that it makes at run time
            raise errors.ArchiveUnavailable(self._url, f"{type(exc).__name__}: {exc}", remedy) from exc

    def _run(self, operation: str, **parameters: Any) -> Any:  # Any: as `_call`
        if self._client is None:
            try:
                import boto3
                from botocore.config import Config
            except ImportError as exc:
                why = "it needs boto3: pip install 'aftermind[s3]'."
                raise errors.InvalidSettings("archive", self._url, why) from exc
            waits = Config(
                connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries={"total_max_attempts": TRIES}
            )
            self._client = boto3.client("s3", config=waits)
        answer = getattr(self._client, operation)(**parameters)
        return answer["Body"].read() if "Body" in answer else None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
