"""Errors as problem details (RFC 9457), each with a remedy."""

import math
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import Scope

from aftermind import errors
from aftermind.nearest_name import nearest_name
from aftermind.telemetry.logger import get_logger

log = get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:problem-type:"
RETRY_SECONDS = 1  # most outages are over by then, and a client that retries then causes no harm

# The first that fits, from the particular to the general: status, and whether the same request may work later.
STATUS: tuple[tuple[type[errors.AftermindError], int, bool], ...] = (
    (errors.MessageTooLarge, 413, False),
    (errors.InvalidSettings, 501, False),
    (errors.InvalidInput, 422, False),
    (errors.ReceiptTimeout, 504, True),
    (errors.RateLimited, 503, True),
    (errors.Unavailable, 503, True),
    (errors.KeyRefused, 401, False),
    (errors.RightMissing, 403, False),
    (errors.NotThere, 404, False),
    (errors.QueueFull, 429, True),
    (errors.SpoolFull, 503, True),
    (errors.TooManyListeners, 503, True),
    (errors.TooManyRequests, 429, True),
    (errors.BudgetExhausted, 429, True),
    (errors.NotAllowed, 403, False),
    (errors.GroupReadOnly, 403, False),
    (errors.WrongRole, 503, False),
    (errors.Forgotten, 410, False),
    (errors.SchemaOutdated, 503, True),
    (errors.Refused, 409, False),
    (errors.IdempotencyConflict, 422, False),  # as the IETF's draft of the Idempotency-Key header has it
    (errors.Conflict, 409, False),
    (errors.Bug, 500, False),
)


class Problem(BaseModel):
    """An error in the format of RFC 9457. `field` names the invalid part of the request, if there is one."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="Kind of the problem: `urn:problem-type:` and a stable name.")
    title: str
    status: int
    detail: str = Field(description="What failed, the value, and what to do.")
    field: str | None = None
    errors: list[dict[str, Any]] | None = Field(None, description="All invalid fields, if there are several.")


_SCHEMA = {"schema": {"$ref": "#/components/schemas/Problem"}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"content": {MEDIA_TYPE: _SCHEMA}, "description": "A problem of the request."},
    "5XX": {"content": {MEDIA_TYPE: _SCHEMA}, "description": "A problem of the service."},
}


def install(app: FastAPI) -> None:
    """Answer every error of `app` with a problem document."""
    app.add_exception_handler(errors.AftermindError, _handle_aftermind_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_exception_handler(Exception, _handle_unexpected)


def problem(
    name: str,
    status: int,
    title: str,
    detail: str,
    *,
    more: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Create a problem document. Text from a request may be invalid Unicode; a response must not be."""
    body = {"type": TYPE + name, "title": title, "status": status, "detail": _clean(detail), **(more or {})}
    return JSONResponse(body, status_code=status, headers=headers, media_type=MEDIA_TYPE)


def error_status(kind: type[errors.AftermindError]) -> tuple[int, bool]:
    """The status of an error of ours, and whether the same request may work later."""
    return next(((code, again) for each, code, again in STATUS if issubclass(kind, each)), (500, False))


def words_of(kind: type[errors.AftermindError]) -> list[str]:
    """The words of an error's name; joined by hyphens, its problem type."""
    return [word.lower() for word in re.findall(r"[A-Z][a-z]*", kind.__name__)]


def to_response(error: errors.AftermindError) -> JSONResponse:
    """The document of an error of ours; a fault of ours is logged."""
    if isinstance(error, errors.Bug):
        log.error("a fault of ours", exc_info=error)
    status, may_retry = error_status(type(error))
    words = words_of(type(error))
    wait = max(RETRY_SECONDS, math.ceil(getattr(error, "retry_after", None) or 0))
    headers = {"Retry-After": str(wait)} if may_retry else {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="aftermind"'
    field = getattr(error, "field", None)
    more = {"field": field} if isinstance(field, str) else {}
    return problem("-".join(words), status, " ".join(words).capitalize(), str(error), more=more, headers=headers)


async def _handle_aftermind_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, errors.AftermindError)
    return to_response(error)


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Problems of a request that does not match the schema. Values are left out: they may be user content."""
    assert isinstance(error, RequestValidationError)
    found = [_describe_fault(request, each) for each in error.errors()]
    told = "; ".join(f"{each['field']}: {each['why']}" for each in found[:5])
    return problem("invalid-request", 422, "Invalid request", told, more={"errors": found})


def _describe_fault(request: Request, each: Mapping[str, Any]) -> dict[str, str]:  # Any: as pydantic has it
    if each["type"] == "json_invalid":
        why = f"it is no JSON, at character {each['loc'][-1]}: {each.get('ctx', {}).get('error', '')}"
        return {"field": "body", "why": why}
    return {"field": _clean(".".join(map(str, each["loc"]))), "why": _clean(each["msg"] + _hint(request, each))}


def _hint(request: Request, each: Mapping[str, Any]) -> str:
    """The nearest field of the body to one that it does not have."""
    field = getattr(request.scope.get("route"), "body_field", None)
    known = list(getattr(field.field_info.annotation, "model_fields", ())) if field is not None else []
    if each["type"] != "extra_forbidden" or len(each["loc"]) != 2 or not known:
        return ""
    near = nearest_name(str(each["loc"][1]), known)
    return f". Did you mean {near}?" if near else f". The fields are {', '.join(known)}."


async def handle_http_error(request: Request, error: Exception) -> JSONResponse:
    """An error of the framework as a problem document."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}."
    return problem(f"http-{error.status_code}", error.status_code, str(error.detail), detail, headers=error.headers)


def route_template(scope: Scope) -> str:
    """The template of a request's route: a path itself holds names that users gave, and is never logged."""
    route = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    if not isinstance(path, str):
        return "unmatched"
    is_api = str(scope["path"]).startswith("/v1/") and not path.startswith("/v1/")  # a router leaves its prefix out
    return f"/v1{path}" if is_api else path


async def _handle_unexpected(request: Request, error: Exception) -> JSONResponse:
    log.exception("%s %s", request.method, route_template(request.scope), exc_info=error)
    return problem(
        "fault", 500, "Internal error", "Please report it with the time; the log of the service has details."
    )


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
