"""A user-defined profile schema: a Pydantic model, or a JSON schema."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Union

import orjson
from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from aftermind import errors
from aftermind.types import Json

_CONVERSION = ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False)
_PYTHON_TYPES: Mapping[object, Any] = MappingProxyType(
    {
        "integer": int,
        "number": float,
        "boolean": bool,
        "string": str,
        "object": dict[str, object],
        "null": None,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSchema:
    """What a profile may hold. `model` converts values, else the types in `json` do, which is shown to the model."""

    json: Mapping[str, Json]
    model: type[BaseModel] | None = None

    def converted(self, values: Mapping[str, Json]) -> dict[str, Json]:
        """The traits that are wanted, in the types that they are wanted in; what cannot be converted is left out."""
        found: dict[str, Json] = {}
        for name, value in values.items():
            wanted = self._type_of(name)
            if wanted is not None and not (isinstance(value, bool) and _is_number(wanted.json_schema())):
                with suppress(ValidationError, orjson.JSONEncodeError):  # an integer of more than 64 bits
                    fitting = wanted.dump_python(wanted.validate_python(value), mode="json")
                    orjson.dumps(fitting)
                    found[name] = fitting
        return found

    def fitted(self, name: str, value: Json) -> Json:
        """The value of a trait in the type that it is wanted in; None if it cannot be converted."""
        return value if self._type_of(name) is None else self.converted({name: value}).get(name)

    def _type_of(self, name: str) -> TypeAdapter[Any] | None:  # Any: of the schema
        if self.model is not None:
            named = {each: field for name, field in self.model.model_fields.items() for each in _names_of(name, field)}
            if (field := named.get(name)) is None:
                return None
            wanted_type: Any = field.annotation or object
            return TypeAdapter(Annotated[wanted_type, *field.metadata] if field.metadata else wanted_type)
        wanted = self.json.get("properties", {}).get(name)
        return None if wanted is None else TypeAdapter(_python_type(wanted), config=_CONVERSION)


ANY_TRAITS = ProfileSchema(json={})


@lru_cache(maxsize=16)
def profile_schema(given: str | None) -> ProfileSchema | None:
    """The schema of `settings.profile_schema`; None lets the model propose traits. Raises `InvalidSettings`."""
    if given is None:
        return None
    if given.lstrip().startswith("{"):
        return _parse_json(given)
    module, _, name = given.partition(":")
    try:
        model = getattr(import_module(module), name, None)
    except (ImportError, ValueError) as exc:
        why = (
            f"it cannot be imported: {exc}. Add its folder to PYTHONPATH, then run `aftermind up` or the process again."
        )
        raise errors.InvalidSettings("profile_schema", given, why) from exc
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        why = f"module {module!r} has no Pydantic model of the name {name!r}; give `module:Model`."
        raise errors.InvalidSettings("profile_schema", given, why)
    return ProfileSchema(json=model.model_json_schema(), model=model)


def _is_number(schema: Mapping[str, Any]) -> bool:  # Any: JSON
    kinds = {each.get("type") for each in (schema, *schema.get("anyOf", ()))}
    return "boolean" not in kinds and not kinds.isdisjoint({"integer", "number"})


def _python_type(wanted: Json) -> Any:  # Any: a type is no value of a static one
    """The type of a JSON schema: by its `enum`, its `type`, one or several, with `items`, or its `anyOf`; else any."""
    schema = wanted if isinstance(wanted, dict) else {}
    if isinstance(values := schema.get("enum"), list):
        rest = {name: value for name, value in schema.items() if name != "enum"}
        return Annotated[_python_type(rest), AfterValidator(partial(_one_of, values))]
    if isinstance(schema.get("anyOf"), list):
        return Union[tuple(_python_type(each) for each in schema["anyOf"]) or (object,)]  # noqa: UP007 - of a tuple
    named = schema.get("type")
    names = [each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)]
    items: Any = _python_type(schema.get("items")) if "array" in names else object
    types = {**_PYTHON_TYPES, "array": list[items]}
    return Union[tuple(types.get(each, object) for each in names) or (object,)]  # noqa: UP007 - of a tuple


def _one_of(values: list[Json], value: Json) -> Json:
    if value not in values:
        raise ValueError("it is none of the values")
    return value


def _names_of(name: str, field: FieldInfo) -> set[str]:
    """The field's name, and those under which the schema that the model is shown has it."""
    given = field.validation_alias
    choices = given.choices if isinstance(given, AliasChoices) else [given]
    return {name, *(each for each in choices if isinstance(each, str))}


def _parse_json(given: str) -> ProfileSchema:
    try:
        schema = orjson.loads(given)
    except orjson.JSONDecodeError as exc:
        raise errors.InvalidSettings("profile_schema", given, f"it is not JSON: {exc}.") from exc
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise errors.InvalidSettings("profile_schema", given, "a JSON schema of an object, with its properties.")
    return ProfileSchema(json=schema)
