"""Loggers whose lines show their fields under any logging configuration, not only under `log_format`."""

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any


class Line:
    """A log message with fields. As text it shows both; `log_format` writes the fields separately."""

    def __init__(self, text: str, fields: Mapping[str, object]) -> None:
        self.text, self.fields = text, fields

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{self.text} ({fields.replace('%', '%%') if '%' in self.text else fields})"  # arguments are yet to come


class _Logger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        # Any: what the standard library's method takes
        return (Line(msg, kwargs["extra"]) if kwargs.get("extra") else msg), kwargs


def get_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """The logger of a module."""
    return _Logger(logging.getLogger(name))
