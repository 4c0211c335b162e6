"""Importing the library costs next to nothing, and loads no library that a caller may never need."""

import subprocess
import sys

HEAVY = (
    "alembic",
    "asyncpg",
    "celery",
    "fastapi",
    "kombu",
    "numpy",
    "openai",
    "pydantic",
    "redis",
    "rich",
    "sqlalchemy",
    "typer",
)
MOST_MS = 150  # what a command-line tool can spend without anybody noticing
TRIES = 5


def test_importing_aftermind_loads_no_heavy_library() -> None:
    loaded = _run("import sys, aftermind; print(' '.join(sorted(sys.modules)))").split()

    assert not set(HEAVY) & set(loaded)


def test_the_errors_can_be_imported_without_heavy_libraries() -> None:
    loaded = _run("import sys, aftermind.errors; print(' '.join(sorted(sys.modules)))").split()

    assert not set(HEAVY) & set(loaded)


def test_importing_aftermind_takes_less_than_150_ms() -> None:
    code = "import time; t = time.perf_counter(); import aftermind; print((time.perf_counter() - t) * 1000)"

    took = min(float(_run(code)) for _ in range(TRIES))  # the best: a busy machine is not the library's fault

    assert took < MOST_MS


def test_every_public_name_is_there_at_first_use_without_celery_openai_fastapi_or_typer() -> None:
    """A memory needs Postgres and Redis libraries; what belongs to workers, providers and faces stays out."""
    code = (
        "import sys, aftermind\n"
        "for name in aftermind.__all__: getattr(aftermind, name)\n"
        "print(' '.join(sorted(sys.modules)))"
    )

    loaded = _run(code).split()

    assert not {"celery", "kombu", "openai", "fastapi", "typer", "rich", "aftermind_tasks", "aftermind_workers"} & set(
        loaded
    )


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
