"""Fingerprints of the keys that a process uses, and where two processes differ. They reveal nothing of a key."""

import hmac
import os
import socket
from collections.abc import Mapping
from hashlib import sha256
from itertools import permutations

from aftermind import errors
from aftermind.api import connections
from aftermind.db.encryption.keyfiles import LazyKeys, audit_keys, master_keys
from aftermind.settings import Settings
from aftermind.telemetry.logger import get_logger
from aftermind.wire.process_keys import Fingerprints, keep_announcing
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys

log = get_logger(__name__)


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


async def announce_keys(settings: Settings) -> None:
    """Announce the keys of a web service, until cancelled."""
    redis = connections.resolve(settings).redis
    if redis is None:
        return
    link = RedisLink(redis, timeout=2.0, name="aftermind-web")
    try:
        process = f"web {socket.gethostname()}:{os.getpid()}"
        await keep_announcing(link, Keys(settings.redis_prefix), process, readable_fingerprints(settings))
    finally:
        await link.close()


def find_mismatches(processes: Mapping[str, Fingerprints]) -> list[tuple[str, str, str]]:
    """Setting, process, and another process whose newest key the first one does not have.

    A process without any key of a kind is left out: it may not need one.
    """
    return [
        (setting, one, other)
        for one, other in permutations(sorted(processes), 2)
        for setting in sorted(processes[one])
        if processes[one][setting] and (newest := processes[other].get(setting, ())[:1])
        if newest[0] not in processes[one][setting]
    ]


def _fingerprint(setting: str, key: bytes) -> str:
    return hmac.digest(key, f"aftermind {setting} fingerprint".encode(), sha256)[:8].hex()
