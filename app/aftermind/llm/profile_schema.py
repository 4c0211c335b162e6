"""A user-defined profile schema: a Pydantic model, or a JSON schema."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from aftermind import errors
from aftermind.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSchema:
    """What a profile may hold. `model` checks values; a JSON schema names traits and is shown to the model."""

    json: Mapping[str, Json]
    model: type[BaseModel] | None = None

    def fits(self, name: str, value: Json) -> bool:
        """Whether a trait is wanted, and of the type that it is wanted in."""
        if self.model is None:
            return name in self.json.get("properties", {})
        field = self.model.model_fields.get(name)
        if field is None:
            return False
        try:
            TypeAdapter(field.annotation or object).validate_python(value)
        except ValidationError:
            return False
        return True


def profile_schema(given: str | None) -> ProfileSchema | None:
    """The schema of `settings.profile_schema`; None lets the model propose traits. Raises `InvalidSettings`."""
    if given is None:
        return None
    if given.lstrip().startswith("{"):
        return _parse_json(given)
    module, _, name = given.partition(":")
    try:
        model = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise errors.InvalidSettings("profile_schema", given, f"it cannot be imported: {exc}.") from exc
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise errors.InvalidSettings("profile_schema", given, "it is no Pydantic model.")
    return ProfileSchema(json=model.model_json_schema(), model=model)


def _parse_json(given: str) -> ProfileSchema:
    try:
        schema = orjson.loads(given)
    except orjson.JSONDecodeError as exc:
        raise errors.InvalidSettings("profile_schema", given, f"it is not JSON: {exc}.") from exc
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise errors.InvalidSettings("profile_schema", given, "a JSON schema of an object, with its properties.")
    return ProfileSchema(json=schema)
