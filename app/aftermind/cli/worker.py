"""`aftermind worker`, `reconciler` and `flower`: processes that do the background work, and the one that shows it."""

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from aftermind import errors, extras, private_files
from aftermind.api import address_resolution
from aftermind.cli import process_per_database, terminal
from aftermind.database_map import DEFAULT
from aftermind.settings import Settings
from aftermind.stack import ports
from aftermind.wire import queues

if TYPE_CHECKING:  # it loads SQLAlchemy and NumPy
    from aftermind.memory import Memory

Queues = Annotated[str, typer.Option("--queues", "-Q", help=f"Comma-separated: {', '.join(queues.QUEUES)}; or all.")]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", "-c", min=1, help="Threads, each with up to 4 jobs of models. Default: by queue."),
]

OneDatabase = Annotated[
    str | None,
    typer.Option(
        help="Of AFTERMIND_DATABASES: the only one to serve. Default: AFTERMIND_DATABASE, else one process for each."
    ),
]

LogLevel = Annotated[str | None, typer.Option("--loglevel", help="Lowest level. Default: AFTERMIND_LOG_LEVEL.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(worker)
    app.command()(reconciler)
    app.command()(flower)


def worker(
    *,
    named: Queues = "all",
    concurrency: Concurrency = None,
    loglevel: LogLevel = None,
    database: OneDatabase = None,
) -> None:
    """Run a Celery worker on queues of Aftermind, until SIGTERM. Run one per group of queues, or more.

    On a store of several processes (`sqlite:`, `redis://`, `mongodb://`, `sql+…`) it is a Celery worker if
    AFTERMIND_BROKER_URL is set. Otherwise it runs all jobs, one after another, and agents with AFTERMIND_RUN_JOBS=false
    leave them to it.
    """
    wanted = list(queues.QUEUES) if named == "all" else [name.strip() for name in named.split(",")]
    for name in wanted:
        if name not in queues.QUEUES:
            raise errors.InvalidSettings("--queues", name, f"the queues are {', '.join(queues.QUEUES)}.")
    settings = _of_database(database)
    if not _serves_every_database(settings):
        found = address_resolution.resolve(settings)
        if found.is_shared and found.broker is None:
            _serve(settings, queues=named, concurrency=concurrency)
            return
    level, more = loglevel or settings.log_level, ["-c", str(concurrency)] if concurrency else []
    if _serves_every_database(settings):
        _run_for_each(settings, ["worker", "--queues", ",".join(wanted), "--loglevel", level, *more])
    _become([*worker_argv(wanted, loglevel=level), *more], settings, is_worker=True)


def reconciler(*, database: OneDatabase = None) -> None:
    """Re-notify workers about unclaimed jobs, until SIGTERM. Run two: one leads, the other is on standby."""
    settings = _of_database(database)
    if _serves_every_database(settings):
        _run_for_each(settings, ["reconciler"])
    _become(reconciler_argv(), settings)


def flower(*, address: str = "127.0.0.1", port: int | None = None) -> None:
    """Run Flower until SIGTERM. FLOWER_BASIC_AUTH=user:password (or …_FILE) is required.

    It needs only the broker (as the Redis user `aftermind-flower`), no database and no key.
    """
    login = _flower_login()
    for pair in login.split(","):
        user, _, password = pair.partition(":")
        if not user or not password:
            why = "Flower shows every worker and job. Set it to user:password."
            raise errors.InvalidSettings("FLOWER_BASIC_AUTH", None, why)
    settings = Settings()
    private_files.make_folder(settings.state_dir)
    wanted = {"FLOWER_ADDRESS": address, "FLOWER_PORT": str(port or settings.flower_port)}
    more = {name: os.environ.get(name, value) for name, value in wanted.items()} | {"FLOWER_BASIC_AUTH": login}
    if more["FLOWER_PORT"].isdecimal():
        ports.require_free("aftermind flower", int(more["FLOWER_PORT"]), more["FLOWER_ADDRESS"])
    broker = settings.broker_url or settings.redis_url
    if broker is None:  # the embedded stack's
        _become(flower_argv(), settings, more)
    if settings.databases:  # the program finds the one of its database
        _execute(flower_argv(), more)
    _execute(flower_argv(), {**more, "AFTERMIND_BROKER_URL": broker.get_secret_value()})


def _flower_login() -> str:
    path = os.environ.get("FLOWER_BASIC_AUTH_FILE")
    if path is None:
        return os.environ.get("FLOWER_BASIC_AUTH", "")
    try:
        return Path(path).read_text().strip()
    except OSError as exc:
        raise errors.InvalidSettings("FLOWER_BASIC_AUTH_FILE", path, f"it cannot be read: {exc.strerror}.") from exc


def worker_argv(names: list[str], *, loglevel: str) -> list[str]:
    """The command of a Celery worker on these queues."""
    extras.require("celery", "a worker")
    argv = [sys.executable, "-m", "aftermind_workers.celery_worker"]
    argv += ["-Q", ",".join(names), "-n", f"{_node_name(names)}@%h", "--loglevel", loglevel]
    return [*argv, "--without-gossip", "--without-mingle"]  # workers need no knowledge of each other


def _node_name(names: list[str]) -> str:
    if set(names) == set(queues.QUEUES):
        return "all"
    return "-".join(name.rpartition(".")[2] for name in dict.fromkeys(names))


def reconciler_argv() -> list[str]:
    """The command of a reconciler."""
    extras.require("celery", "a reconciler")
    return [sys.executable, "-m", "aftermind_workers.reconciler"]


def flower_argv() -> list[str]:
    """The command of Flower; address, port and password come by its environment."""
    extras.require("flower", "`aftermind flower`")
    config = find_spec("aftermind_workers.flowerconfig")
    if config is None or config.origin is None:
        raise errors.Bug("the package aftermind_workers is not installed.")
    # Without Celery's banner: what a process writes is its log.
    celery = [sys.executable, "-m", "celery", "--quiet", "-A", "aftermind_workers.celery_app"]
    return [*celery, "flower", f"--conf={config.origin}"]


def _serve(settings: Settings, *, queues: str, concurrency: int | None) -> None:
    for option, value in (("--queues", None if queues == "all" else queues), ("--concurrency", concurrency)):
        if value is not None:
            why = "without AFTERMIND_BROKER_URL a worker of this store runs all jobs, one by one. Leave it out."
            raise errors.InvalidSettings(option, value, why)

    async def serve(memory: "Memory") -> None:
        work = (await memory.health()).work
        due, later = sum(row.runnable + row.running for row in work), sum(row.waiting for row in work)
        store = address_resolution.resolve(settings).scheme
        terminal.out.print(f"Runs the jobs of the {store} store: {due:,} due, {later:,} scheduled. Ctrl-C ends it.")
        with suppress(asyncio.CancelledError):  # by SIGTERM: the memory is closed, and the exit code is 0
            await memory._parts.serve_jobs()

    terminal.with_memory(serve, settings=settings.model_copy(update={"run_jobs": True}))


def _of_database(name: str | None) -> Settings:
    return Settings() if name is None else Settings(database=name)


def _serves_every_database(settings: Settings) -> bool:
    return bool(settings.databases) and "database" not in settings.model_fields_set


def _run_for_each(settings: Settings, command: list[str]) -> NoReturn:
    for name in settings.database_names:  # refused now, and not by each process again and again
        address_resolution.resolve(settings.of_database(name))
    raise typer.Exit(process_per_database.run(settings, [sys.executable, "-m", "aftermind.cli", *command]))


def _become(
    argv: list[str], settings: Settings, more: Mapping[str, str] | None = None, *, is_worker: bool = False
) -> NoReturn:
    """Replace this process by the program, so that signals and exit code are those of the program."""
    found = address_resolution.resolve(settings)
    if found.is_in_process and not (is_worker and found.broker):
        why = "its jobs run in the processes that open it. Workers of queues, and reconcilers, need Postgres and Redis."
        if found.broker:
            why = "its workers of the queue memory.store do the work of a reconciler. Start none."
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", found.scheme, why)
    # Those of another database are in the map, and are not those of the default.
    named = found.environment() if settings.database == DEFAULT else {}
    chosen = {"AFTERMIND_DATABASE": settings.database} if settings.databases else {}
    _execute(argv, {**named, **chosen, **(more or {})})


def _execute(argv: list[str], more: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    os.execve(argv[0], argv, {**os.environ, **more})
