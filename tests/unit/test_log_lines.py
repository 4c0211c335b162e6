"""A log line has its reason under any logging configuration, and its fields once."""

import io
import json
import logging

from aftermind.telemetry.log_format import JsonLines, Lines
from aftermind.telemetry.logger import get_logger


def test_a_line_shows_its_fields_with_pythons_own_formatter() -> None:
    assert _logged(logging.Formatter("%(message)s")) == [
        "replica is not used (replica=db-2, reason=100% late)",
        "GET /x (status=200, reason=100%)",
        "plain",
    ]


def test_our_formats_write_the_fields_separately_and_once() -> None:
    first, second, _ = map(json.loads, _logged(JsonLines()))

    assert (first["message"], first["replica"], first["reason"]) == ("replica is not used", "db-2", "100% late")
    assert second["message"] == "GET /x"
    assert _logged(Lines())[0].endswith("replica is not used  replica=db-2  reason=100% late")


def _logged(formatter: logging.Formatter) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    plain = logging.getLogger("aftermind.test_log_lines")
    plain.addHandler(handler)
    try:
        log = get_logger(plain.name)
        log.warning("replica is not used", extra={"replica": "db-2", "reason": "100% late"})
        log.warning("%s %s", "GET", "/x", extra={"status": 200, "reason": "100%"})
        log.warning("plain")
    finally:
        plain.removeHandler(handler)
    return stream.getvalue().splitlines()
