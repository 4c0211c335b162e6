"""Inputs and outputs of pending: plain values that agents and workers share."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from aftermind.settings import Settings
from aftermind.types import JobId, LeaseToken, Scope, Turn, Watermark
from aftermind.wire.redis_epoch import Epoch
from aftermind.wire.turn_encoding import decode_owned_turn


class PendingLimit(StrEnum):
    """Which limit declined a turn; the text names it for `QueueFull`."""

    TURNS = "pending turns"
    BYTES = "pending bytes"
    AGE = "age of the oldest pending turn in seconds"
    USER = "pending turns of this user"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLimits:
    """What may be pending: of everybody, and of one user."""

    turns: int
    size_bytes: int
    age: timedelta
    turns_of_user: int

    @classmethod
    def from_settings(cls, settings: Settings) -> "PendingLimits":
        """Create from `settings.pending_max_*`."""
        return cls(
            turns=settings.pending_max_turns,
            size_bytes=settings.pending_max_bytes,
            age=timedelta(seconds=settings.pending_max_age_seconds),
            turns_of_user=settings.pending_max_turns_per_user,
        )

    def of(self, refusal: PendingLimit) -> float:
        """The limit that the refusal names."""
        return {
            PendingLimit.TURNS: self.turns,
            PendingLimit.BYTES: self.size_bytes,
            PendingLimit.AGE: self.age.total_seconds(),
            PendingLimit.USER: self.turns_of_user,
        }[refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A turn to accept. It gets the latest generation (not above `turn.recalled`), or if it was spooled, its own."""

    turn: Turn
    payload: bytes
    is_spooled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Result of an offer: `base` is its position; `known`: it was already there, nothing changed.

    `conflict`: its idempotency key was there with other content. If `refusal` is set it was not accepted, and `value`
    exceeded the limit. If `moved` is set it was not accepted: its tenant has moved to that database.
    """

    base: int
    known: bool = False
    conflict: bool = False
    refusal: PendingLimit | None = None
    value: float = 0.0
    moved: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTurn:
    """A turn that a worker holds until its lease ends.

    `attempts` includes this claim, `lost_leases` counts workers that crashed with it; `former_worker` was the last of
    them. `poison`: there were too many; dead-letter it. `payload` is not decoded: bytes of an unknown version must
    reach a dead letter unchanged. See `turn()`. `is_early`: it was accepted before this Redis had any generation.
    """

    job_id: JobId
    owner: Scope
    payload: bytes
    base: int
    attempts: int
    lost_leases: int
    accepted_at: datetime
    token: LeaseToken
    poison: bool
    generation: int | None = None
    counted_from: int | None = None
    is_early: bool = False
    former_worker: str = ""

    def turn(self) -> Turn:
        """Decoded, with position and generation that Redis gave. Raises `UnknownPayload` and `ForeignPayload`."""
        return decode_owned_turn(
            self.payload,
            owner=self.owner,
            jobs=(self.job_id,),
            accepted_at=self.accepted_at + timedelta(milliseconds=1),  # Redis gives whole ones, rounded down
            base=self.base,
            generation=self.generation,
            counted_from=self.counted_from,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRead:
    """What recall needs before it reads the database, all of one moment.

    `turns` are the newest, oldest first; `total` is how many the owner has. A turn that cannot be decoded is left out
    (a later release's), and counted in `unreadable`. `epoch` None: this Redis came back empty, or a value is
    malformed: serve from the primary.
    `redis_ms` is Redis's clock, `trusted_ms` for how long replicas may be read under watermarks (freshness.lease).
    `moved` is the database that the tenant has moved to; `generation` the number of the last erasure, None if this
    Redis has not received any number.
    """

    turns: tuple[Turn, ...]
    total: int
    watermark: Watermark | None
    epoch: Epoch | None
    unreadable: int = 0
    redis_ms: int = 0
    trusted_ms: int = 0
    moved: str | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBacklog:
    """Everybody's pending turns; `next_jobs` are ids of some that can be claimed now, fairest first.

    `handed_back` are turns, of the oldest 100, that workers could not store and try again later: without a database, or
    a key. `claimable_age` is the age of the oldest of these and of the turns that are next in their namespaces.
    """

    turns: int
    runnable: int
    size_bytes: int
    oldest_age: timedelta
    namespaces_waiting: int
    next_jobs: tuple[JobId, ...]
    claimable_age: timedelta
    handed_back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """`removed` turns left pending; `runnable` could be claimed now, so the worker continues or sends a doorbell."""

    removed: int
    runnable: int
