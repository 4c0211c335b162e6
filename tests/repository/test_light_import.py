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
MAX_MODULES = 40  # of the standard library and ours; an import of one takes 0.2 to 1 ms


def test_importing_aftermind_loads_no_heavy_library() -> None:
    loaded = _run("import sys, aftermind; print(' '.join(sorted(sys.modules)))").split()

    assert not set(HEAVY) & set(loaded)


def test_the_errors_can_be_imported_without_heavy_libraries() -> None:
    loaded = _run("import sys, aftermind.errors; print(' '.join(sorted(sys.modules)))").split()

    assert not set(HEAVY) & set(loaded)


def test_importing_aftermind_loads_few_modules() -> None:
    code = "import sys; before = set(sys.modules); import aftermind; print(len(set(sys.modules) - before))"

    assert int(_run(code)) <= MAX_MODULES


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
