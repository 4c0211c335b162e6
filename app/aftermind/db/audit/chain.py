"""The hash chain of an audit trail: each entry's code covers the entry and the previous code, and the head is
authenticated. No I/O.

HMAC-SHA256 with a key that is not in the database: write access to the database is not enough to forge an entry or a
head.
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
    """A name of the key that does not reveal it."""
    return hmac.digest(key, b"aftermind audit key id", hashlib.sha256)[:6].hex()


def entry_mac(key: bytes, entry: AuditEntry, detail: str, before: bytes) -> bytes:
    """The code of an entry, behind the code of the one before it."""
    micros = (entry.at - _EPOCH) // (entry.at.resolution)
    fields = [entry.namespace, entry.seq, micros, entry.actor, str(entry.action), entry.user_id, detail, before.hex()]
    return hmac.digest(key, b"entry" + orjson.dumps(fields), hashlib.sha256)


def head_mac(key: bytes, namespace: str, head: Head) -> bytes:
    """The code of a head."""
    fields = [namespace, head.seq, head.mac.hex(), head.pruned_to, head.pruned_mac.hex()]
    return hmac.digest(key, b"head" + orjson.dumps(fields), hashlib.sha256)


def verify_entries(
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
    elif not hmac.compare_digest(head.seal, head_mac(named[head.key_id], namespace, head)):
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
        elif not hmac.compare_digest(entry.mac, entry_mac(named[entry.key_id], entry, detail, before)):
            fault(entry.seq, "it was changed or inserted, or does not follow the one before it")
        before, place = entry.mac, entry.seq
    if place < head.seq:
        fault(None, f"the newest entries are missing: {place + 1} to {head.seq}")
    elif place > head.seq:
        fault(place, f"it is after the end of the chain, which the head records as {head.seq}")
    elif before != head.mac:
        fault(place, "it is not the last entry that the head records")
    return found
