"""What this package returns, as values of JSON."""

import base64
from dataclasses import fields, is_dataclass
from datetime import date, timedelta
from pathlib import PurePath
from typing import Any
from uuid import UUID


def to_plain(value: Any) -> Any:  # Any: whatever a dataclass holds, as JSON
    """Dataclasses, mappings and sequences as dicts and lists, ids and paths as texts, times as ISO 8601, spans as
    seconds, bytes as base64.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(map(to_plain, value), key=str)  # the same each time
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date):  # a datetime is one, too
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID | PurePath):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value
