"""Encodes turns as bytes, for Redis, the spool and dead letters. Versioned; old versions stay readable."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from aftermind import errors
from aftermind.types import EpisodeId, JobId, Message, Role, Scope, Turn
from aftermind.types.feedback import MAX_IDS, Feedback
from aftermind.types.message import ALL_KINDS
from aftermind.wire.redis_keys import MAX_ACCEPT_MS

VERSION = 1  # a reader that meets a later one raises UnknownPayload, and the bytes are kept as they are
# A clock that is behind by less is not noticed, and one that is right keeps its microseconds.
MAX_ACCEPT_TIME = timedelta(milliseconds=MAX_ACCEPT_MS)
FEEDBACK_VERSION = 2  # of turns with feedback, which a reader of version 1 would drop


def encode_turn(turn: Turn) -> bytes:
    """The turn as compact JSON. What is at its default is left out."""
    scope = turn.scope
    data: dict[str, Any] = {  # Any: JSON
        "v": VERSION if turn.feedback is None else FEEDBACK_VERSION,
        "job": turn.job_id,  # orjson writes ids and times itself, three times as fast as str() and isoformat()
        "ns": scope.namespace,
        "at": turn.remembered_at,
        "base": turn.base,
        "messages": [
            _message(message, episode) for message, episode in zip(turn.messages, turn.episode_ids, strict=True)
        ],
    }
    if scope.user_id is not None:
        data["user"] = scope.user_id
    if scope.session_id is not None:
        data["session"] = scope.session_id
    if scope.agent_id is not None:
        data["agent"] = scope.agent_id
    if turn.idempotency_key is not None:
        data["key"] = turn.idempotency_key
    if turn.trace is not None:
        data["trace"] = turn.trace
    if turn.content_hash is not None:
        data["hash"] = turn.content_hash
    if turn.generation is not None:
        data["generation"] = turn.generation
    if turn.counted_from is not None:
        data["counted_from"] = turn.counted_from
    if turn.spooled_seconds:
        data["spooled"] = turn.spooled_seconds
    if turn.keep != ALL_KINDS:
        data["keep"] = sorted(turn.keep)
    if turn.feedback is not None:
        # asyncpg reads ids as a subclass of `UUID`, which orjson refuses.
        rated = {"helpful": turn.feedback.helpful, "unhelpful": turn.feedback.unhelpful}
        data["feedback"] = {name: [str(each) for each in ids] for name, ids in rated.items()}
    return orjson.dumps(data)


def decode_turn(
    payload: bytes, *, base: int | None = None, generation: int | None = None, counted_from: int | None = None
) -> Turn:
    """Decode a turn; `base`, `generation` and `counted_from` from Redis replace those of the payload.

    Raises `UnknownPayload` for an unsupported version or shape.
    """
    data = _loaded(payload)
    try:
        messages = data["messages"]
        return Turn(
            job_id=JobId(UUID(data["job"])),
            scope=Scope(
                namespace=data["ns"],
                user_id=data.get("user"),
                session_id=data.get("session"),
                agent_id=data.get("agent"),
            ),
            remembered_at=datetime.fromisoformat(data["at"]),
            base=data["base"] if base is None else base,
            messages=tuple(_read_message(message) for message in messages),
            episode_ids=tuple(EpisodeId(UUID(message["id"])) for message in messages),
            keep=ALL_KINDS.intersection(data["keep"]) if "keep" in data else ALL_KINDS,
            idempotency_key=data.get("key"),
            trace=data.get("trace"),
            content_hash=data.get("hash"),
            generation=_number(data, "generation") if generation is None else generation,
            counted_from=_number(data, "counted_from") if counted_from is None else counted_from,
            feedback=_read_feedback(data["feedback"]) if "feedback" in data else None,
            spooled_seconds=float(data.get("spooled", 0.0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, errors.InvalidInput) as exc:
        raise errors.UnknownPayload("turn", f"{VERSION} ({type(exc).__name__}: {exc})") from exc


def decode_owned_turn(
    payload: bytes,
    *,
    owner: Scope,
    jobs: Collection[UUID | None],
    accepted_at: datetime,
    is_replay: bool = False,
    base: int | None = None,
    generation: int | None = None,
    counted_from: int | None = None,
) -> Turn:
    """The turn of an entry: a queue, a row or a letter that belongs to `owner` and bears one of the ids in `jobs`.

    `accepted_at` is the time of acceptance by the server's clock, and decides when the turn was remembered: see
    `_by_servers_clock`. `is_replay`: it was accepted long before.
    Raises `ForeignPayload` if the payload names another owner or job: what is inside an entry decides nothing about
    other owners. Raises `UnknownPayload` as `decode_turn` does.
    """
    turn = decode_turn(payload, base=base, generation=generation, counted_from=counted_from)
    if turn.scope.owner != owner.owner:
        raise errors.ForeignPayload("owner")
    if turn.job_id not in jobs:
        raise errors.ForeignPayload("job")
    return replace(turn, remembered_at=_by_servers_clock(turn, accepted_at, is_replay=is_replay))


def _by_servers_clock(turn: Turn, accepted_at: datetime, *, is_replay: bool) -> datetime:
    """When the turn was remembered: by the agent's clock where that can be right, else by the server's.

    With a clock that is ahead, facts from the turn would not be true yet; with one that is behind, what the user said
    before through another host would count as later. A turn that was spooled was remembered as long before as it had
    waited there. A turn without a generation keeps its time, by which erasures judge it.
    """
    latest = accepted_at - timedelta(seconds=max(0.0, turn.spooled_seconds))
    if turn.remembered_at > accepted_at:
        return latest
    is_behind = turn.remembered_at < latest - MAX_ACCEPT_TIME
    return latest if is_behind and not is_replay and turn.generation is not None else turn.remembered_at


def decode_readable(payloads: Iterable[bytes], *, owner: Scope) -> list[Turn]:
    """The turns of these rows of an owner, without those that only a later release can read, or that name another."""
    found = []
    for payload in payloads:
        with suppress(errors.UnknownPayload):
            found.append(decode_turn(payload))
    return [turn for turn in found if turn.scope.owner == owner.owner]


def _number(data: Mapping[str, Any], name: str) -> int | None:  # Any: JSON
    found = data.get(name)
    return None if found is None else int(found)


def _read_feedback(data: Mapping[str, Any]) -> Feedback:  # Any: JSON
    """As many ids as a call can name, also in a payload that was changed."""
    ids = {name: tuple(UUID(each) for each in data.get(name, ())) for name in ("helpful", "unhelpful")}
    if sum(map(len, ids.values())) > MAX_IDS:
        raise ValueError("too many ids")
    return Feedback(**ids)


def _loaded(payload: bytes) -> Mapping[str, Any]:  # Any: JSON
    try:
        data = orjson.loads(payload)
    except orjson.JSONDecodeError as exc:
        raise errors.UnknownPayload("turn", "none: it is not JSON") from exc
    version = data.get("v") if isinstance(data, dict) else None
    if version not in (VERSION, FEEDBACK_VERSION):
        raise errors.UnknownPayload("turn", version)
    return dict(data)


def _message(message: Message, episode_id: EpisodeId) -> dict[str, Any]:  # Any: JSON
    data: dict[str, Any] = {"id": episode_id, "role": message.role.value, "content": message.content}
    if message.name is not None:
        data["name"] = message.name
    if message.metadata:
        data["metadata"] = message.metadata
    if message.occurred_at is not None:
        data["occurred"] = message.occurred_at
    if message.expires_at is not None:
        data["expires"] = message.expires_at
    return data


def _read_message(data: Mapping[str, Any]) -> Message:  # Any: JSON
    occurred, expires = data.get("occurred"), data.get("expires")
    return Message(
        role=Role(data["role"]),
        content=data["content"],
        name=data.get("name"),
        metadata=data.get("metadata") or {},
        occurred_at=None if occurred is None else datetime.fromisoformat(occurred),
        expires_at=None if expires is None else datetime.fromisoformat(expires),
    )
