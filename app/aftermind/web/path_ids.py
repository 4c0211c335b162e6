"""Ids in paths: percent-encoded slashes belong to the id, and `-` with `anonymous=true` is the anonymous user.

Servers decode `%2F` before routing, so that an id with a slash would be two segments of the path. The raw path still
has it: it is replaced by a character that no decoded path can contain, and the convertor reverses this.
"""

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path, Query
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Scope

from aftermind import errors
from aftermind.types.scope import GROUP_PREFIX, MAX_ID_BYTES

SLASH = "\udc2f"  # a lone surrogate: UTF-8 has no such character
ANONYMOUS = "-"  # the path's user where `anonymous=true` names the anonymous one

UserPath = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_ID_BYTES,
        description="User id, percent-encoded (`/` as `%2F`); `-` only with `anonymous=true`, for the anonymous user.",
    ),
]
IsAnonymous = Annotated[bool, Query(description="Use the anonymous user; the user in the path must be `-`.")]


class IdConvertor(Convertor[str]):
    """One segment of a path, in which an encoded slash is part of the id: `{user_id:id}`."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """The id."""
        return value.replace(SLASH, "/")

    def to_string(self, value: str) -> str:
        """The segment."""
        return value.replace("/", SLASH)


register_url_convertor("id", IdConvertor())


def decode_path_segments(scope: Scope) -> None:
    """Decode the raw path of a request segment by segment, where it holds an encoded slash."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" in raw.lower():
        segments = [unquote(each).replace("/", SLASH) for each in raw.decode("ascii", "replace").split("/")]
        scope["path"] = "/".join(segments)


async def named_user(user_id: UserPath, *, anonymous: IsAnonymous = False) -> str | None:
    """The user that a path names; None is the anonymous one. Raises `InvalidScope`.

    Async, because FastAPI calls a plain function in a thread.
    """
    if not anonymous:
        if user_id.startswith(GROUP_PREFIX):
            raise errors.InvalidScope("user_id", user_id, "it is a group. Use /v1/groups/{group}/…?user_id=MEMBER.")
        if user_id == ANONYMOUS:
            why = "in a path it is the anonymous user. Add ?anonymous=true to name it."
            raise errors.InvalidScope("user_id", user_id, why)
        return user_id
    if user_id != ANONYMOUS:
        why = f"with anonymous=true the user in the path must be {ANONYMOUS!r}: a request is about one user."
        raise errors.InvalidScope("user_id", user_id, why)
    return None
