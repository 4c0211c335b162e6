"""How a trail chains: each entry's code covers the entry and the code before it, and the head is sealed. No I/O.

HMAC-SHA256, with a key that is not in the database: whoever may write there can neither make an entry nor a head.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from aftermind.types.audit import AuditEntry, AuditFault

START = b""  # what the first entry follows
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AuditKeys:
    """Keys by id. The first writes; every one vouches for what it wrote."""

    keys: tuple[bytes, ...]

    @property
    def current(self) -> tuple[str, bytes]:
        """Id and key of what is written now."""
        return key_id(self.keys[0]), self.keys[0]

    def named(self) -> Mapping[str, bytes]:
        """Every key by its id."""
        return {key_id(key): key for key in self.keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of a trail: its last entry, the last one that was pruned, and a seal over both."""

    seq: int
    mac: bytes
    pruned_to: int = 0
    pruned_mac: bytes = START
    key_id: str = ""
    seal: bytes = b""


def key_id(key: bytes) -> str:
    """A name of the key that does not tell it."""
    return hmac.digest(key, b"aftermind audit key id", hashlib.sha256)[:6].hex()


def mac_of(key: bytes, entry: AuditEntry, detail: str, before: bytes) -> bytes:
    """The code of an entry, behind the code of the one before it."""
    micros = (entry.at - _EPOCH) // (entry.at.resolution)
    fields = [entry.namespace, entry.seq, micros, entry.actor, str(entry.action), entry.user_id, detail, before.hex()]
    return hmac.digest(key, b"entry" + orjson.dumps(fields), hashlib.sha256)


def seal_of(key: bytes, namespace: str, head: Head) -> bytes:
    """The code of a head."""
    fields = [namespace, head.seq, head.mac.hex(), head.pruned_to, head.pruned_mac.hex()]
    return hmac.digest(key, b"head" + orjson.dumps(fields), hashlib.sha256)


def faults_of(
    keys: AuditKeys, namespace: str, head: Head | None, rows: Sequence[tuple[AuditEntry, str]]
) -> list[AuditFault]:
    """What is wrong with the entries (with their detail as text, in order) and the head of a trail."""

    def fault(seq: int | None, what: str) -> None:
        found.append(AuditFault(namespace=namespace, seq=seq, what=what))

    found: list[AuditFault] = []
    named = keys.named()
    if head is None:
        if rows:
            fault(None, "there are entries, and no head that counts them")
        return found
    if head.key_id not in named:
        fault(None, f"the head is sealed with another key ({head.key_id or 'none'}): see AFTERMIND_AUDIT_KEY")
    elif not hmac.compare_digest(head.seal, seal_of(named[head.key_id], namespace, head)):
        fault(None, "the head was changed")
    before, place = head.pruned_mac, head.pruned_to
    for entry, detail in rows:
        if entry.seq != place + 1:
            what = (
                f"entries {place + 1} to {entry.seq - 1} are missing" if entry.seq > place + 1 else "it is out of order"
            )
            fault(entry.seq, what)
        elif entry.key_id not in named:
            fault(entry.seq, f"it was written with another key ({entry.key_id}): see AFTERMIND_AUDIT_KEY")
        elif not hmac.compare_digest(entry.mac, mac_of(named[entry.key_id], entry, detail, before)):
            fault(entry.seq, "it was changed or inserted, or does not follow the one before it")
        before, place = entry.mac, entry.seq
    if place < head.seq:
        fault(None, f"the newest entries are missing: {place + 1} to {head.seq}")
    elif place > head.seq:
        fault(place, f"it lies behind the head, which ends at {head.seq}")
    elif before != head.mac:
        fault(place, "it is not the one that the head knows as the last")
    return found
