"""Builds the turn of a `remember()` call: validated, normalised, with ids and a position."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from aftermind import errors
from aftermind.recall import query
from aftermind.settings import Settings
from aftermind.types import Message, RecallBlock, Scope, Turn
from aftermind.types.feedback import Feedback
from aftermind.types.message import ALL_KINDS, MEMBER, content_hash, content_metadata, keyed_ids, new_ids
from aftermind.types.tombstone import MAX_ERASURE_NUMBER
from aftermind.types.validation import Given, Limits, normalise, split

KINDS = ALL_KINDS  # what of a conversation can be kept, and loaded
KEY_BYTES = 1_024


class PromptKey(str):
    """An idempotency key that belongs to the first `prompts` messages: another run gives another answer.

    They are one turn, and the answer is the next one: a run whose model failed can be repeated, with other metadata
    too. `answer` is what follows them: "answer", of which the first one is kept, or "part" of one that was interrupted.
    """

    prompts: int
    answer: str

    def __new__(cls, key: str, prompts: int, answer: str = "answer") -> "PromptKey":
        made = super().__new__(cls, key)
        made.prompts, made.answer = prompts, answer
        return made


def limits(settings: Settings) -> Limits:
    """Limits of a turn from the settings."""
    return Limits(
        message_bytes=settings.message_max_bytes,
        messages=settings.turn_max_messages,
        turn_bytes=settings.turn_max_bytes,
        metadata_bytes=settings.metadata_max_bytes,
        metadata_depth=settings.metadata_max_depth,
        future=timedelta(seconds=settings.future_tolerance_seconds),
    )


def split_turn(
    given: Given | Iterable[Given], settings: Settings, *, idempotency_key: str | None = None
) -> list[tuple[tuple[Message, ...], str | None]]:
    """Messages that may be too large for one turn, as turns for `remember`, each with its idempotency key.

    Every message is checked before the first turn is handed over. Raises `InvalidMessage`.
    """
    turns = split(given, limits(settings), now=datetime.now(UTC))
    if not isinstance(idempotency_key, PromptKey):
        return [(turn, _key_of_part(idempotency_key, number)) for number, turn in enumerate(turns)]
    messages = [message for turn in turns for message in turn]
    prompts = idempotency_key.prompts
    parts = split_turn(messages[:prompts], settings, idempotency_key=str(idempotency_key))
    prompt: list[tuple[tuple[Message, ...], str | None]] = [(part, PromptKey(str(key), prompts)) for part, key in parts]
    answer = messages[prompts:]
    if not answer:
        return prompt
    key = _key_of_part(idempotency_key, idempotency_key.answer)
    return [*prompt, *split_turn(answer, settings, idempotency_key=key)]


def _key_of_part(key: str | None, part: int | str) -> str | None:
    if key is None or part == 0:
        return key
    return hashlib.sha256(f"{key}#{part}".encode("utf-8", "replace")).hexdigest()


def make_turn(
    given: Given | Iterable[Given],
    scope: Scope,
    bounds: Limits,
    *,
    keep: frozenset[str],
    idempotency_key: str | None,
    position: Callable[[int], int],
    feedback: Feedback | None = None,
    recalled: int | None = None,
) -> Turn:
    """The turn; later erasures than `recalled` cover it. Raises `InvalidMessage` before anything is handed over."""
    now = datetime.now(UTC)  # for people alone: neither order nor erasure asks it
    messages = normalise(given, bounds, now=now)
    is_prompt = isinstance(idempotency_key, PromptKey)
    compared = [replace(each, metadata=content_metadata(each)) for each in messages] if is_prompt else messages
    if idempotency_key is None:
        job_id, episode_ids = new_ids(len(messages))
    else:
        job_id, episode_ids = keyed_ids(scope, _key(idempotency_key), len(messages))
    return Turn(
        job_id=job_id,
        scope=scope,
        remembered_at=now,
        base=position(len(messages)),
        messages=messages,
        episode_ids=episode_ids,
        keep=keep,
        idempotency_key=None if idempotency_key is None else str(idempotency_key),
        content_hash=None if idempotency_key is None else content_hash(scope, str(idempotency_key), compared),
        feedback=feedback,
        recalled=recalled,
    )


def last_erasure_before(recalled: RecallBlock | int | None) -> int | None:
    """The number of the last erasure before a recall, by its block or as its `last_erasure`. Raises `InvalidQuery`."""
    if recalled is None or isinstance(recalled, RecallBlock):
        return None if recalled is None else recalled.last_erasure
    if isinstance(recalled, bool) or not isinstance(recalled, int) or not 0 <= recalled < MAX_ERASURE_NUMBER:
        raise errors.InvalidQuery("recalled", recalled, "give the block of a recall, or its `last_erasure`.")
    return recalled


def make_feedback_turn(
    given: Feedback,
    scope: Scope,
    bounds: Limits,
    *,
    member: str | None,
    idempotency_key: str | None,
    position: Callable[[int], int],
) -> Turn:
    """Feedback as a turn that keeps no message; `member` is its author in a group."""
    shown = Message.system(str(given), metadata=None if member is None else {MEMBER: member})
    return make_turn(
        shown,
        scope,
        bounds,
        keep=frozenset(),
        idempotency_key=idempotency_key,
        position=position,
        feedback=given,
    )


def kinds(
    field: str, given: Iterable[str] | None, otherwise: frozenset[str], *, of: frozenset[str] = KINDS
) -> frozenset[str]:
    """The kinds of memory to save or load. Raises `InvalidSettings` for an unknown kind."""
    if given is None:
        return otherwise
    if isinstance(given, str):
        raise errors.InvalidSettings(field, given, "it is a set of names, as {'facts'}.")
    chosen = frozenset(given)
    if not chosen <= of:
        raise errors.InvalidSettings(field, sorted(chosen - of), f"what can be named is {', '.join(sorted(of))}.")
    return chosen


def loaded(load: Iterable[str] | None, save: Iterable[str] | None) -> frozenset[str] | None:
    """What a recall may hold: as named, else what is saved, with the blocks; None is everything."""
    if load is not None:
        return kinds("load", load, query.KINDS, of=query.KINDS)
    return None if save is None else frozenset(save) | {"blocks"}


def _key(key: object) -> str:
    if not isinstance(key, str) or not key:
        raise errors.InvalidMessage("idempotency_key", key, "it is text, and not empty.")
    if len(key.encode("utf-8", "replace")) > KEY_BYTES or "\x00" in key:
        raise errors.InvalidMessage("idempotency_key", key, f"it has at most {KEY_BYTES} UTF-8 bytes, and no NUL.")
    return key
