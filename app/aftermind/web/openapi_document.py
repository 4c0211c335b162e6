"""The OpenAPI document of the JSON API: FastAPI's, with errors, events and the right that each operation needs."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from aftermind.types.api_key import Right
from aftermind.web import auth, routes
from aftermind.web.event_schemas import event_schemas
from aftermind.web.problem_details import Problem

RIGHT = "x-required-right"  # of an operation

_documents: dict[tuple[str, ...], dict[str, Any]] = {}  # by the routes of an application: those of a process are alike


def install(app: FastAPI) -> None:
    """Extend the document of an application."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        paths = tuple(f"{getattr(each, 'methods', None)} {getattr(each, 'path', '')}" for each in app.routes)
        if paths in _documents:
            app.openapi_schema = deepcopy(_documents[paths])
            return app.openapi_schema
        whole = described()
        schemas = whole["components"]["schemas"]
        for name, schema in ({"Problem": Problem.model_json_schema()} | event_schemas()).items():
            schemas.setdefault(name, schema)
        for path, method, right in _rights():
            whole["paths"][path][method][RIGHT] = right.value
        _documents[paths] = deepcopy(whole)
        return whole

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented method to extend its schema


def _rights() -> Iterator[tuple[str, str, Right]]:
    for module in routes.MODULES:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            calls = [each.call for each in route.dependant.dependencies]
            needed = [each.right for each in calls if isinstance(each, auth.Needing)]
            if auth.listener in calls:  # or a stream token of the user
                needed.append(Right.READ)
            for method in route.methods or ():
                yield routes.VERSION + route.path_format, method.lower(), needed[0]
