"""Log format: JSON lines, or readable lines on a terminal. Ids and counts, never content.

A library's error may quote its input (a driver shows its parameters, a validator its input). Therefore the class and
location of foreign exceptions are logged, but not their text.
"""

import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson

from aftermind import errors
from aftermind.telemetry.logger import Line

# At DEBUG these loggers write whole requests and responses.
TALKATIVE = (
    "LiteLLM",
    "anthropic",
    "boto3",
    "botocore",
    "cohere",
    "mcp",
    "pymongo",
    "s3transfer",
    "sse_starlette",
    "voyage",
    "openai",
    "httpx",
    "httpcore",
    "sqlalchemy",
    "asyncpg",
    "urllib3",
    "hpack",
    "python_multipart",
)
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
INNERMOST = 12  # frames of a traceback

Ids = Mapping[str, str | int]
_bound: ContextVar[Ids] = ContextVar("aftermind_log_ids", default={})  # noqa: B039  # never changed, only replaced


@contextmanager
def bound(**ids: str | int | None) -> Iterator[None]:
    """Every line that is written inside carries these ids; None is left out."""
    token = _bound.set({**_bound.get(), **{name: value for name, value in ids.items() if value is not None}})
    try:
        yield
    finally:
        _bound.reset(token)


def configure(
    *,
    level: int | str = logging.INFO,
    style: Literal["auto", "json", "text"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Let the whole process log so, to `stream` (stderr). What was configured before is replaced.

    `style` auto is text on a terminal, else JSON.
    """
    chosen = stream or sys.stderr
    handler = logging.StreamHandler(chosen)
    handler.setFormatter(Lines() if style == "text" or (style == "auto" and chosen.isatty()) else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("uvicorn", "uvicorn.access", "uvicorn.error"):  # they have separate handlers
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.captureWarnings(True)


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, message, ids and counts, and of an error its class and places."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {"at": _at(record).isoformat(), "level": record.levelname, "logger": record.name}
        line |= {"message": format_message(record), **record_fields(record)}
        error = _error(record)
        if error is not None:
            line |= {"error_class": _safe_error(error), "traceback": _trace(record)}
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class Lines(logging.Formatter):
    """Log lines for terminals: time, level, message, then `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback below it."""
        pairs = "  ".join(f"{name}={value}" for name, value in record_fields(record).items())
        line = f"{_at(record):%H:%M:%S} {record.levelname:7} {format_message(record)}  {pairs}".rstrip()
        return "\n".join([line, *(f"    {frame}" for frame in _trace(record)), *_last(record)])


def format_message(record: logging.LogRecord) -> str:
    """The message. A request's query is left out: it may have content."""
    if record.name == "uvicorn.access" and isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, path, version, status = record.args
        return f'{client} - "{method} {str(path).partition("?")[0]} HTTP/{version}" {status}'
    if isinstance(record.msg, Line):  # its fields are written separately
        return record.msg.text % record.args if record.args else record.msg.text
    return record.getMessage()


def record_fields(record: logging.LogRecord) -> dict[str, Any]:  # Any: whatever a caller's `extra` holds
    """Ids of the block that it was written in, and what it was written with."""
    own = {name: value for name, value in vars(record).items() if name not in STANDARD and not name.startswith("_")}
    return {**_bound.get(), **own}


def _at(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _trace(record: logging.LogRecord) -> list[str]:
    """Places, the innermost last, and above them those of what caused it. Source lines are left to the editor."""
    lines: list[str] = []
    error = _error(record)
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)[-INNERMOST:]
        told_of = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        lines = [*told_of, _safe_error(error), *lines] if lines else told_of
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return lines


def _last(record: logging.LogRecord) -> list[str]:
    error = _error(record)
    return [] if error is None else [f"    {_safe_error(error)}"]


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if isinstance(record.exc_info, tuple) else None


def _safe_error(error: BaseException) -> str:
    """Ours name ids and counts, but for those that quote what they refuse."""
    if isinstance(error, errors.AftermindError) and not isinstance(error, errors.InvalidInput):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__
