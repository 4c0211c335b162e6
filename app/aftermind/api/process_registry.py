"""Lists processes with heartbeat, version, queues and settings in force, and finds keys and settings that differ.

Each process announces its own; keys as fingerprints, which do not reveal them.
"""

import hmac
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version

from aftermind import errors
from aftermind.api import address_resolution
from aftermind.db.encryption.keyfiles import LazyKeys, audit_keys, master_keys
from aftermind.settings import Settings
from aftermind.telemetry.logger import get_logger
from aftermind.types.job_admin import ProcessInfo
from aftermind.wire.process_registry import ABOUT, AT, Fingerprints, keep_announcing, list_announced
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import SILENT_PROCESS_SECONDS, Keys

log = get_logger(__name__)

SETTINGS = "settings"  # the name of the settings among the announced keys
COMPARED_SETTINGS = ("embedder", "embedding_dimension", "extractor", "chat_model", "language", "namespace_languages")
ANNOUNCED_TABLES = ("namespace_budgets", "placement", "replay_models", "web_cors_origins")  # without secrets


def fingerprints(settings: Settings) -> dict[str, list[str]]:
    """Of each key of the process, by setting, the newest first. Raises `InvalidSettings`."""
    from aftermind.events.webhooks import signing_secrets

    sources: dict[str, LazyKeys] = {
        "audit_key": audit_keys(settings.audit_key, settings.state_dir),
        "encryption_key": master_keys(settings.encryption_key, settings.state_dir),
        "webhook_key": signing_secrets.keys(settings),
    }
    return {name: [_fingerprint(name, key) for key in source.existing()] for name, source in sources.items()}


def readable_fingerprints(settings: Settings) -> dict[str, list[str]]:
    """Nothing if a key cannot be read: what needs it fails then, and not the start of the process."""
    try:
        return fingerprints(settings)
    except errors.InvalidSettings as exc:
        log.error("keys are not announced", extra={"error": str(exc)})
        return {}


def announced_state(settings: Settings, **options: object) -> dict[str, list[str]]:
    """What a process announces: fingerprints of its keys, its settings, and options of its command.

    Settings are those that decide what it derives, and the others that differ from their defaults. Secrets, addresses
    and folders are left out.
    """
    others = {
        name: value
        for name, value in settings.model_dump(exclude_defaults=True).items()
        if name not in COMPARED_SETTINGS
        and not name.endswith("_url")  # it may have a password
        and (isinstance(value, str | int | float) or name in ANNOUNCED_TABLES)
    }
    listed = [f"{name}={value}" for name, value in {**options, **others}.items() if value is not None]
    return {**readable_fingerprints(settings), SETTINGS: [*listed, *list_settings(settings)]}


def process_description(*queues: str) -> Callable[[], list[str]]:
    """What describes this process, as `name=value`: version, queues, start and, at each call, its peak memory."""
    started = int(time.time())

    def describe() -> list[str]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1_024)
        fixed = [f"version={version('aftermind')}", f"started={started}", f"peak_memory_bytes={peak}"]
        return [*fixed, *([f"queues={','.join(queues)}"] if queues else [])]

    return describe


def list_settings(settings: Settings) -> list[str]:
    """The compared settings, as `name=value`."""
    return [f"{name}={getattr(settings, name)}" for name in COMPARED_SETTINGS]


async def announce_keys(settings: Settings) -> None:
    """Announce the keys of a web service, until cancelled."""
    redis = address_resolution.resolve(settings).redis
    if redis is None:
        return
    link = RedisLink(redis, timeout=2.0, name="aftermind-web")
    try:
        process = f"web {socket.gethostname()}:{os.getpid()}"
        await keep_announcing(
            link, link.keys(settings.redis_prefix), process, announced_state(settings), process_description()
        )
    finally:
        await link.close()


def find_mismatches(processes: Mapping[str, Fingerprints]) -> list[tuple[str, list[str], list[str]]]:
    """Each newest key that a process lacks: its setting, the processes without it, and those whose newest key it is.

    A process without any key of a kind is left out: it may not need one.
    """
    newest: dict[tuple[str, str], list[str]] = {}
    for name in sorted(processes):
        for setting, keys in processes[name].items():
            if keys and setting not in (SETTINGS, ABOUT):
                newest.setdefault((setting, keys[0]), []).append(name)
    without = {
        (setting, key): [
            name for name in sorted(processes) if (keys := processes[name].get(setting, ())) and key not in keys
        ]
        for setting, key in newest
    }
    return sorted((setting, lacking, newest[setting, key]) for (setting, key), lacking in without.items() if lacking)


def find_other_settings(
    processes: Mapping[str, Fingerprints], ours: Sequence[str]
) -> list[tuple[list[str], tuple[str, ...]]]:
    """Processes whose compared settings differ from ours, with theirs: one entry for all that have the same."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(processes):
        announced = processes[name].get(SETTINGS, ())
        differing = tuple(each for each in announced if _is_compared(each) and each not in ours)
        found.setdefault(differing, []).append(name)
    return [(names, differing) for differing, names in found.items() if differing]


def _is_compared(announced: str) -> bool:
    return announced.partition("=")[0] in COMPARED_SETTINGS


def _fingerprint(setting: str, key: bytes) -> str:
    return hmac.digest(key, f"aftermind {setting} fingerprint".encode(), sha256)[:8].hex()


async def list_processes(link: RedisLink, keys: Keys) -> list[ProcessInfo]:
    """Workers, reconcilers and services, by name: those without a heartbeat too, for ten minutes. Raises
    `RedisUnavailable`.
    """
    found, heard = [], await list_announced(link, keys)
    for name, announced in sorted((await list_announced(link, keys, seconds=SILENT_PROCESS_SECONDS)).items()):
        with suppress(ValueError, KeyError, OverflowError):  # an entry that no process of ours wrote
            found.append(_process(name, announced, is_silent=name not in heard))
    return found


def _process(name: str, announced: Fingerprints, *, is_silent: bool) -> ProcessInfo:
    worker = name.removeprefix("worker ")
    about = dict(each.partition("=")[::2] for each in announced[ABOUT])
    return ProcessInfo(
        name=f"reconciler {worker.removesuffix(':reconciler')}" if worker.endswith(":reconciler") else name,
        version=about["version"],
        queues=tuple(filter(None, about.get("queues", "").split(","))),
        started_at=datetime.fromtimestamp(int(about["started"]), UTC),
        heartbeat_at=datetime.fromtimestamp(float(about[AT]), UTC),
        peak_memory_bytes=int(about["peak_memory_bytes"]),
        settings=tuple(announced.get(SETTINGS, ())),
        is_silent=is_silent,
    )
