"""JSON schemas of the events of a stream, for the OpenAPI document: generated clients get typed events."""

from dataclasses import fields
from datetime import datetime
from typing import Any, Literal, get_type_hints

from pydantic import create_model

from aftermind.events.types import KINDS, MemoryEvent

UNION = "MemoryEvent"
REFERENCE = {"$ref": f"#/components/schemas/{UNION}"}


def event_schemas() -> dict[str, Any]:  # Any: JSON schemas
    """A schema for each kind of event as a stream has it, and their union."""
    schemas: dict[str, Any] = {name: _schema(name, kind) for name, kind in KINDS.items()}
    references = {name: f"#/components/schemas/{name}" for name in schemas}
    schemas[UNION] = {
        "description": "An event of a stream, by the name in `event`.",
        "oneOf": [{"$ref": each} for each in references.values()],
        "discriminator": {"propertyName": "event", "mapping": references},
    }
    return schemas


def _schema(name: str, kind: type[MemoryEvent]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    columns: dict[str, Any] = {"event": (Literal[name], ...), "at": (datetime, ...), "namespace": (str, ...)}
    columns |= dict.fromkeys(("user_id", "session_id", "agent_id"), (str | None, None))
    columns |= {each.name: (hints[each.name], ...) for each in fields(kind) if each.name not in ("scope", "at")}
    schema: dict[str, Any] = create_model(
        name, __doc__=(kind.__doc__ or "").split("\n")[0], **columns
    ).model_json_schema()
    return schema
