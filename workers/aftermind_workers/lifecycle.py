"""Life cycle of a worker process: opened after a fork, drained on SIGTERM, monitored in between."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import psutil
from celery import Celery, signals

from aftermind.api import webhook_courier
from aftermind.ledger.inmemory import job_admin as local_job_admin
from aftermind.ledger.postgres import job_admin as postgres_job_admin
from aftermind.process_priority import lower_priority
from aftermind.settings import Settings
from aftermind.telemetry import log_format, tracing
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobKind
from aftermind.wire import queues
from aftermind_tasks import per_tenant_batches
from aftermind_tasks.runtime import NOT_READY, OPEN_SECONDS, Runtime, open_runtime
from aftermind_workers import celery_config, metrics, readiness_file, reconciler, replay_scheduler
from aftermind_workers.event_loop_thread import LoopThread
from aftermind_workers.fair_share import Places
from aftermind_workers.flower_events import FlowerReporter
from aftermind_workers.last_attempt_isolation import Solitude
from aftermind_workers.metrics_observer import Counting
from aftermind_workers.operator_pauses import JobPauses
from aftermind_workers.outage_pauses import Gates

log = get_logger(__name__)

WATCH_SECONDS = 5.0
PLACES_OF_BELL = 4  # jobs of one bell side by side: they wait for models, not for each other
# Of a worker that stores no turns: recalls and receipts of stores do not wait for it. A third of the weight of others.
BACKGROUND_NICE = 5
SWITCH_SECONDS = 0.001  # how long a thread waits for one that computes; the default of 5 ms is as long as a batch takes


@dataclass(slots=True)
class Worker:
    """What one process works with. `stopping` is set from a signal handler, `pause` returns early then."""

    loop: LoopThread
    runtime: Runtime
    gates: Gates = field(default_factory=Gates)
    stopping: threading.Event = field(default_factory=threading.Event)
    begun: "dict[str, Future[int]]" = field(default_factory=dict)  # by bell, see `early`
    solitude: Solitude = field(default_factory=Solitude)
    next_source: dict[str, int] = field(default_factory=dict)  # of each queue, where the next bell begins
    # Of jobs that run one by one: live ones, and those of replays.
    live_places: Places = field(default_factory=lambda: _places(celery_config.CONCURRENCY[queues.EXTRACT]))
    replay_places: Places = field(default_factory=lambda: _places(celery_config.CONCURRENCY[queues.REPLAY]))
    leftover: set[asyncio.Task[None]] = field(default_factory=set)  # jobs that outlasted their bell
    turns: dict[tuple[JobKind, bool], per_tenant_batches.Turns] = field(default_factory=dict)  # by kind, and of replays
    # Batches of pending turns.
    store_places: Places = field(default_factory=lambda: Places(celery_config.CONCURRENCY[queues.STORE]))
    # Held while a large turn is stored: one at a time, so that small turns always find a free slot.
    large_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    pauses: JobPauses = field(init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        is_postgres = self.runtime.serve_store is None
        self.pauses = JobPauses(self.runtime.db, postgres_job_admin if is_postgres else local_job_admin)

    def places_of(self, queue: str) -> Places:
        """The places that the jobs of a queue hold."""
        return {queues.STORE: self.store_places, queues.REPLAY: self.replay_places}.get(queue, self.live_places)

    @property
    def is_stopping(self) -> bool:
        """Whether no further work is to be claimed."""
        return self.stopping.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the worker is to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def finish_leftover(self) -> None:
        """Wait for the jobs that outlasted their bell; `drain` bounds the wait."""
        while self.leftover:
            await asyncio.wait(self.leftover)

    def drain(self, *, grace: float) -> None:
        """Finish what runs and claim nothing more; after `grace` seconds hand back what still runs.

        Called in a signal handler: it takes no lock that the interrupted code may hold.
        """
        self.stopping.set()
        self.loop.call_soon(self._woken.set)
        timer = threading.Timer(grace, self.loop.call_soon, [self.loop.cancel_tasks])
        timer.daemon = True
        timer.start()

    async def watch_memory(self, limit_bytes: int) -> None:
        """Request a warm stop from Celery when the process has grown beyond the limit; its supervisor restarts it.

        Threads have no `max_memory_per_child`; this replaces it.
        """
        process = psutil.Process()
        while not self.is_stopping:
            size = process.memory_info().rss
            metrics.RSS.set(size)
            if size > limit_bytes:
                log.warning("worker stops: memory", extra={"rss_bytes": size, "limit_bytes": limit_bytes})
                os.kill(os.getpid(), signal.SIGTERM)
                return
            await self.pause(WATCH_SECONDS)


_workers: dict[int, Worker] = {}  # by process: a fork must not use its parent's loop and connections
_lock = threading.Lock()
_consumed: tuple[str, ...] = ()  # queues of this worker
_named: tuple[Celery, str] | None = None  # the application and this worker's name in it


def current(settings: Settings) -> Worker:
    """This process's worker, made at its first bell."""
    worker = _workers.get(os.getpid())
    if worker is None:
        with _lock:
            worker = _workers.get(os.getpid()) or _open(settings)
            _workers[os.getpid()] = worker
    return worker


def opened() -> Worker | None:
    """This process's worker, where it is open already."""
    return _workers.get(os.getpid())


def connect(settings: Settings) -> None:
    """Tie the life of the process to Celery's signals."""
    set_up_logging = _on_logging(settings)
    # First, so that Celery's warnings while it starts are lines like the others.
    signals.celeryd_init.connect(set_up_logging, weak=False)
    signals.setup_logging.connect(set_up_logging, weak=False)
    signals.celeryd_init.connect(_configure, weak=False)
    signals.worker_ready.connect(_on_ready(settings), weak=False)
    signals.worker_shutting_down.connect(_on_stopping(settings), weak=False)
    signals.worker_shutdown.connect(_on_shutdown, weak=False)
    signals.task_unknown.connect(_on_unknown, weak=False)
    signals.task_rejected.connect(_on_unknown, weak=False)


def _open(settings: Settings) -> Worker:
    loop = LoopThread()
    loop.start()
    name = f"{socket.gethostname()}:{os.getpid()}"
    tracing.export(settings, service="aftermind-worker")
    observer = Counting()
    if _named is not None:
        observer.showing = FlowerReporter(_named[0], node=_named[1])
    bells = _named[0].conf.worker_concurrency if _named is not None else None
    try:
        runtime = loop.run(open_runtime(settings, worker=name, consumed=_consumed, concurrency=bells))
    except BaseException:  # the next attempt has a new loop
        loop.stop()
        raise
    runtime.observer = observer
    live_places = _places(int(bells or celery_config.CONCURRENCY[queues.EXTRACT]))
    store_places = Places(max(int(bells or 0), celery_config.CONCURRENCY[queues.STORE]))
    return Worker(loop=loop, runtime=runtime, live_places=live_places, store_places=store_places)


def _places(bells: int) -> Places:
    return Places(bells * PLACES_OF_BELL)


def _configure(*, sender: str, instance: Any, conf: Any, options: dict[str, Any], **_: object) -> None:
    # Any: Celery's own
    """As many threads as the queues of this worker want, where the command named no number."""
    global _named, _consumed
    _named = (instance.app, sender)
    _consumed = tuple(_names(options.get("queues")))
    wanted = max(celery_config.CONCURRENCY[name] for name in _names(options.get("queues")))
    conf.worker_concurrency = options.get("concurrency") or wanted
    sys.setswitchinterval(SWITCH_SECONDS)
    if queues.STORE not in _consumed:
        lower_priority(BACKGROUND_NICE)


def _on_logging(settings: Settings) -> Any:  # Any: a signal's receiver
    """In Celery's place: its own lines would be neither JSON nor without the text of foreign errors."""

    def configure(*, loglevel: int | str | None = None, **_: object) -> None:
        log_format.configure(level=loglevel or settings.log_level, style=settings.log_format)

    return configure


def _names(given: object) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
    return [name for name in parts if name in celery_config.CONCURRENCY] or list(celery_config.CONCURRENCY)


def _on_ready(settings: Settings) -> Any:  # Any: a signal's receiver
    def ready(*, sender: Any, **_: object) -> None:  # Any: Celery's consumer
        metrics.serve(settings)
        if sender.pool.__class__.__module__.endswith("prefork"):
            readiness_file.write_ready_file(settings)
            return  # the parent only forks; each child opens at its first bell
        names = frozenset(sender.app.amqp.queues.consume_from)
        # In a thread: a store that is away when the worker starts must not leave it without its understudies.
        threading.Thread(target=_begin, args=(settings, names), name="aftermind-begin", daemon=True).start()

    return ready


def _begin(settings: Settings, names: frozenset[str]) -> None:
    """Open this process's worker, however long its database or the schema is missing, and start its background
    services.
    """
    while True:
        try:
            worker = current(settings)
            break
        except NOT_READY as exc:
            log.warning("worker waits", extra={"error": str(exc)})
            time.sleep(OPEN_SECONDS)
    readiness_file.write_ready_file(settings)
    worker.loop.submit(worker.watch_memory(settings.worker_max_memory_bytes))
    if worker.runtime.serve_store is not None:
        if queues.STORE in names:
            worker.runtime.notify = reconciler.Reconciler(runtime=worker.runtime).run_steps
            worker.loop.submit(worker.runtime.serve_store())
        return
    if queues.STORE in names:
        # A standby reconciler: the holder of the advisory lock does the work, so a deployment of store workers alone
        # has a reconciler.
        worker.loop.submit(reconciler.run(worker.runtime, until=lambda: worker.is_stopping, pause=worker.pause))
        worker.loop.submit(
            webhook_courier.run(
                worker.runtime,
                until=lambda: worker.is_stopping,
                pause=worker.pause,
                count=metrics.count_webhook_post,
            )
        )
    if queues.REPLAY in names:
        worker.loop.submit(replay_scheduler.run(worker.runtime, until=lambda: worker.is_stopping, pause=worker.pause))


def _on_stopping(settings: Settings) -> Any:  # Any: a signal's receiver
    def stopping(**_: object) -> None:
        worker = _workers.get(os.getpid())
        if worker is not None:
            worker.drain(grace=settings.shutdown_grace_seconds)

    return stopping


def _on_shutdown(**_: object) -> None:
    tracing.flush()
    worker = _workers.pop(os.getpid(), None)
    if worker is not None:
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            worker.loop.run(worker.finish_leftover())
        with contextlib.suppress(TimeoutError):
            worker.loop.run(worker.runtime.close(), timeout=5.0)
        worker.loop.stop()


def _on_unknown(**_: object) -> None:
    metrics.BELLS.labels(queue="unknown", outcome="garbage").inc()
