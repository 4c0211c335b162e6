"""No log ever holds what somebody said, at any level and whatever fails; and each line can be read by a machine."""

import io
import json
import logging
from pathlib import Path
from typing import Literal

import httpx
import pytest

from aftermind import Memory, errors
from aftermind.settings import Settings
from aftermind.telemetry import log_format
from aftermind.types import JobKind
from aftermind.types.replay import JobFilter
from aftermind.web.auth import COOKIE
from aftermind.wire import queues
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
from tests.support.service import local_token, service
from tests.support.waiting import wait_until
from tests.support.workers import LOUDLY, TOUCHY, environment, workers

ALL = ",".join((queues.STORE, queues.EMBED, queues.EXTRACT))
CELERYS_OWN = ("worker: Warm shutdown (MainProcess)",)  # told in a signal handler, past every logger
CANARY = "marmalade xylophone at midnight"


async def test_a_canary_sentence_is_in_no_log_of_any_process_at_any_level(
    database: Database, redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in log_format.TALKATIVE:
        caplog.set_level(logging.WARNING, logger=name)  # as `logs.configure` has it
    with scripted_openai() as model:
        model.script.plan = ["schema", "garbage", "500", "refusal", "400", "schema"]
        told = {
            "AFTERMIND_EMBEDDER": "openai:text-embedding-3-small",
            "AFTERMIND_EMBEDDING_DIMENSION": "384",
            "AFTERMIND_EXTRACTOR": "openai:scripted",
            "AFTERMIND_EXTRACT_QUIET_SECONDS": "0.2",
            "AFTERMIND_RECONCILE_SECONDS": "0.5",
            "AFTERMIND_MAX_ATTEMPTS": "2",
            "AFTERMIND_LOG_LEVEL": "DEBUG",
            "AFTERMIND_BACKOFF_BASE_SECONDS": "0.1",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": model.url,
        }
        env = environment(database.relay_url, redis_url, **told)
        settings = Settings(embedder="hash", embedding_dimension=384)
        async with Memory(database.app_url, broker=redis_url, settings=settings) as memory:
            with service(env, tmp_path) as url, workers(env, tmp_path, on=ALL, app=TOUCHY, loglevel="DEBUG"):
                for number in range(4):
                    await memory.remember(f"I keep {CANARY}, {number}.", user_id="ann", session_id=f"s{number}")
                await memory.remember(f"{LOUDLY}: {CANARY}", user_id="ann", session_id="loud")
                with pytest.raises(errors.InvalidMessage):
                    await memory.remember({"role": CANARY, "content": CANARY}, user_id="ann")
                await memory.recall(f"Where is {CANARY}?", user_id="ann")
                cookies = {COOKIE: local_token(tmp_path / ".aftermind")}
                await _get(url, f"/?q={CANARY}", cookies)
                await _get(url, f"/v1/users/{CANARY}/blocks", cookies)
                wanted = JobFilter(kinds=(JobKind.STORE,))
                await wait_until(
                    lambda: memory.dead_letters.groups(wanted),
                    timeout=180,
                    description="what was said aloud is a dead letter",
                )
                await _get(url, "/readyz")

    written = _written(tmp_path)
    assert set(written) == {"web.log", "worker-0.log"}
    assert [name for name, text in written.items() if "marmalade" in text] == []
    assert "marmalade" not in caplog.text
    lines = [json.loads(line) for line in written["worker-0.log"].splitlines() if line and line not in CELERYS_OWN]
    of_service = [json.loads(line) for line in written["web.log"].splitlines() if line]
    assert "DEBUG" in {line["level"] for line in of_service}
    buried = next(line for line in lines if line["message"] == "turn dead-lettered")
    assert buried["level"] == "ERROR"
    assert buried["reason"] == "bug:ValueError"
    assert buried["job_id"]
    assert buried["namespace"] == "default"
    failed = next(line for line in lines if line["message"] == "turn not stored")
    assert failed["session_id"] == "loud"
    assert all(json.loads(line)["logger"] for line in written["web.log"].splitlines())


def test_an_error_is_told_by_class_and_place_and_never_by_its_text(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, written = log
    try:
        try:
            raise ValueError(f"unexpected {CANARY}")
        except ValueError as exc:
            raise errors.StoreUnavailable("primary", "gone") from exc
    except errors.StoreUnavailable:
        with log_format.bound(job_id="7", session_id=None):
            logger.exception("it failed", extra={"count": 3})

    line = json.loads(written.getvalue())
    assert (line["message"], line["job_id"], line["count"]) == ("it failed", "7", 3)
    assert "session_id" not in line
    assert line["error_class"].startswith("StoreUnavailable: ")
    assert any("test_logs.py" in place for place in line["traceback"])
    assert "ValueError" in line["traceback"]
    assert CANARY not in written.getvalue()


def test_on_a_terminal_a_line_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    record = logging.LogRecord("aftermind", logging.WARNING, __file__, 1, "lease lost", (), None)
    record.job_id = "7"

    line = log_format.Lines().format(record)

    assert line.endswith("WARNING lease lost  job_id=7")


@pytest.mark.parametrize(
    ("terminal", "style", "formatter"),
    [
        (True, "auto", log_format.Lines),
        (False, "auto", log_format.JsonLines),
        (True, "json", log_format.JsonLines),
        (False, "text", log_format.Lines),
    ],
)
def test_what_is_no_terminal_gets_json_unless_the_setting_names_a_format(
    terminal: bool,
    style: Literal["auto", "json", "text"],
    formatter: type[logging.Formatter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        log_format.configure(style=style, stream=stream)
        assert [type(handler.formatter) for handler in root.handlers] == [formatter]
        assert logging.getLogger("openai").getEffectiveLevel() == logging.WARNING
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.captureWarnings(False)


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    written = io.StringIO()
    logger = logging.Logger("aftermind.test")
    handler = logging.StreamHandler(written)
    handler.setFormatter(log_format.JsonLines())
    logger.addHandler(handler)
    return logger, written


def _written(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.log")}


async def _get(url: str, path: str, cookies: dict[str, str] | None = None) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10, cookies=cookies) as client:
        assert (await client.get(path)).status_code in (200, 503)
