"""The reference of the JSON API, from its OpenAPI document: for the page `/docs` and the documentation."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import groupby
from typing import Any
from urllib.parse import quote, urlencode

from aftermind.web.openapi_document import RIGHT

Schema = Mapping[str, Any]  # Any: JSON

SAMPLES = {"uuid": "01a20852-c791-71a6-82b3-ed49847753b1", "date-time": "2026-01-31T12:00:00Z", "date": "2026-01-31"}
NAMES = {
    "actor": "ops",
    "content": "Prefers short answers.",
    "entity": "Alice",
    "group": "team",
    "member": "bob",
    "name": "human",
    "new": "long",
    "note": "a test",
    "object": "Oslo",
    "old": "short",
    "reason": "the provider answers again",
    "run_id": "run-17",
    "subject": "user",
    "user_id": "alice",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A parameter, or a field of a body or an answer; `place`: path, query, header or body."""

    name: str
    place: str
    type: str
    is_required: bool
    default: str | None
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An endpoint; `example` is a shell command."""

    tag: str
    method: str
    path: str
    summary: str
    description: str
    right: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    status: str
    answer: str | None
    answer_fields: tuple[Field, ...]
    example: str

    @property
    def anchor(self) -> str:
        """The name of its place on a page."""
        return "-".join("".join(c if c.isalnum() else " " for c in f"{self.method} {self.path}").lower().split())


def list_operations(document: Schema) -> list[tuple[str, list[Operation]]]:
    """The endpoints by tag, in the document's order."""
    found = [
        _operation(document, path, method, each)
        for path, methods in document["paths"].items()
        for method, each in methods.items()
    ]
    tags = list(dict.fromkeys(each.tag for each in found))
    ordered = sorted(found, key=lambda each: tags.index(each.tag))
    return [(tag, list(each)) for tag, each in groupby(ordered, key=lambda each: each.tag)]


def _operation(document: Schema, path: str, method: str, given: Schema) -> Operation:
    body = given.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    parameters = [
        Field(
            name=each["name"],
            place=each["in"],
            type=_type(document, each["schema"]),
            is_required=each.get("required", False),
            default=_default(each["schema"]),
            description=each.get("description", ""),
        )
        for each in given.get("parameters", ())
    ]
    status, answer = next((code, each) for code, each in given["responses"].items() if code.startswith("2"))
    content: Schema = answer.get("content", {})
    shown: Schema = next((each["schema"] for each in content.values()), {})
    return Operation(
        tag=given["tags"][0],
        method=method.upper(),
        path=path,
        summary=given["summary"],
        description=given.get("description", ""),
        right=given[RIGHT],
        parameters=tuple(parameters),
        body=tuple(_body_fields(document, body)),
        status=f"{status} {HTTPStatus(int(status)).phrase}",
        answer=_type(document, shown) if shown else None,
        answer_fields=tuple(_fields(document, shown)),
        example=_example(document, method.upper(), path, given.get("parameters", ()), body),
    )


def _body_fields(document: Schema, schema: Schema) -> Iterator[Field]:
    """Those of a body, and after one that is an object itself, its fields as `filter.kinds`."""
    properties = _resolved(document, schema).get("properties", {})
    for field in _fields(document, schema):
        yield field
        of_field = properties.get(field.name, {})  # none, where the body is a list
        for inner in _fields(document, of_field) if "$ref" in of_field else ():
            yield replace(inner, name=f"{field.name}.{inner.name}")


def _fields(document: Schema, schema: Schema) -> Iterator[Field]:
    """Of an object, of the items of a list, or of the items of a page."""
    found = _resolved(document, schema)
    if found.get("type") == "array":
        found = _resolved(document, found["items"])
    properties = found.get("properties", {})
    if set(properties) == {"items", "next"}:
        yield from _fields(document, properties["items"])
        return
    for name, each in properties.items():
        yield Field(
            name=name,
            place="body",
            type=_type(document, each),
            is_required=name in found.get("required", ()),
            default=_default(each),
            description=each.get("description", ""),
        )


def _resolved(document: Schema, schema: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    found: Schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _type(document: Schema, schema: Schema) -> str:
    if "$ref" in schema:
        name: str = schema["$ref"].rpartition("/")[2].rpartition("__")[2]
        named = _resolved(document, schema)
        if "enum" in named:
            return _choice(named["enum"])
        if set(named.get("properties", ())) == {"items", "next"}:
            return f"page of {_type(document, named['properties']['items']['items'])}"
        return name.removesuffix("Out").removesuffix("In")
    if "anyOf" in schema or "oneOf" in schema:
        kinds = [_type(document, each) for each in schema.get("anyOf") or schema["oneOf"]]
        return " or ".join(dict.fromkeys(each for each in kinds if each != "null"))
    if "enum" in schema:
        return _choice(schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if schema.get("type") == "array":
        inner = _type(document, schema.get("items", {}))
        return f"list of ({inner})" if " or " in inner or " | " in inner else f"list of {inner}"
    return str(schema.get("format") or schema.get("type") or "JSON")


def _choice(values: Sequence[object]) -> str:
    return " | ".join(json.dumps(each) for each in values)


def _default(schema: Schema) -> str | None:
    default = schema.get("default")
    return None if default is None or default in ([], {}, "") else json.dumps(default)


def _example(document: Schema, method: str, path: str, parameters: Sequence[Schema], body: Schema) -> str:
    url, query = path, {}
    for each in parameters:
        sample = str(_sample(document, each["name"], each["schema"]))
        if each["in"] == "path":
            url = url.replace(f"{{{each['name']}}}", quote(sample, safe=""))
        elif each["in"] == "query" and each.get("required"):
            query[each["name"]] = sample
    asked = f"?{urlencode(query)}" if query else ""
    verb = "" if method == "GET" else f" -X {method}"
    lines = [f'curl -s{verb} "$URL{url}{asked}" -H "Authorization: Bearer $KEY"']
    if body:
        sample = json.dumps(_sample(document, "body", body), ensure_ascii=False)
        lines.append(f"  -H 'Content-Type: application/json' -d '{sample}'")
    return " \\\n".join(lines)


def _sample(document: Schema, name: str, schema: Schema) -> Any:  # Any: JSON
    """A value that the schema accepts: of an object the required fields."""
    found = _resolved(document, schema)
    if found.get("examples"):
        return found["examples"][0]
    if "anyOf" in found:
        return _sample(document, name, found["anyOf"][0])
    if "enum" in found:
        return found["enum"][0]
    kind = found.get("type")
    if kind == "object" or "properties" in found:
        fields = found.get("properties", {})
        return {each: _sample(document, each, fields[each]) for each in found.get("required", ())}
    if kind == "array":
        return [_sample(document, name, found.get("items", {}))]
    if kind in ("integer", "number"):
        return max(1, found.get("minimum", 1))
    if kind == "boolean":
        return True
    return SAMPLES.get(found.get("format", "")) or NAMES.get(name) or name.replace("_", " ")
