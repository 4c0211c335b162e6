"""Turns that were handed over and that no store job has committed yet: accepted, claimed, settled in Redis."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

from aftermind import errors
from aftermind.settings import Settings
from aftermind.types import Episode, JobId, LeaseToken, Scope, Turn, Watermark
from aftermind.wire.channel import UnknownScriptError
from aftermind.wire.connection import RedisLink
from aftermind.wire.epoch import Epoch
from aftermind.wire.keys import Keys, owner_of, owner_part
from aftermind.wire.payloads import decode_turn
from aftermind.wire.queues import STORE
from aftermind.wire.resp import Answer, Argument, packed
from aftermind.wire.script import Script

BELLS = (
    16  # wait at most in a queue's list: more than a machine has idle workers, and each finds up to a batch of turns
)
HEAD = 6  # arguments of accept that are the same for every turn of a process
PAGE = 1_000  # turns that forget looks at in one call


class Refusal(StrEnum):
    """Which limit declined a turn; the text names it for `QueueFull`."""

    TURNS = "pending turns"
    BYTES = "pending bytes"
    AGE = "age of the oldest pending turn in seconds"
    USER = "pending turns of this user"


_REFUSALS = {2: Refusal.TURNS, 3: Refusal.BYTES, 4: Refusal.AGE, 5: Refusal.USER}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLimits:
    """What may be pending: of everybody, and of one user."""

    turns: int
    size_bytes: int
    age: timedelta
    turns_of_user: int

    @classmethod
    def from_settings(cls, settings: Settings) -> "PendingLimits":
        """As `settings.pending_max_*` say."""
        return cls(
            turns=settings.pending_max_turns,
            size_bytes=settings.pending_max_bytes,
            age=timedelta(seconds=settings.pending_max_age_seconds),
            turns_of_user=settings.pending_max_turns_per_user,
        )

    def of(self, refusal: Refusal) -> float:
        """The limit that the refusal names."""
        return {
            Refusal.TURNS: self.turns,
            Refusal.BYTES: self.size_bytes,
            Refusal.AGE: self.age.total_seconds(),
            Refusal.USER: self.turns_of_user,
        }[refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A turn on its way in. `keep_base`: it was spooled, and its own time is the truth of the order."""

    turn: Turn
    payload: bytes
    keep_base: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What became of an offer: `base` is its position now; `known`: it was there already, nothing changed.

    Where `refusal` is set it was not taken, and `value` is what stood against the limit.
    """

    base: int
    known: bool = False
    refusal: Refusal | None = None
    value: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTurn:
    """A turn that a worker holds until its lease ends.

    `attempts` counts this claim, `lost_leases` the workers that went away with it. `poison`: too many did, bury it.
    `payload` is not decoded: bytes of an unknown version must reach a dead letter whole. See `turn()`.
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

    def turn(self) -> Turn:
        """Decoded, with the position that Redis gave. Raises `UnknownPayload`."""
        return decode_turn(self.payload, base=self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRead:
    """What recall needs before it reads the database, all of one moment.

    `turns` are the newest, oldest first; `total` is how many the owner has. A turn that cannot be decoded is left out
    (a later release's), and counted in `unreadable`. `epoch` None: this Redis came back empty, serve from the primary.
    """

    turns: tuple[Turn, ...]
    total: int
    watermark: Watermark | None
    epoch: Epoch | None
    unreadable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBacklog:
    """Everybody's pending turns; `next_jobs` are ids of some that can be claimed now, fairest first."""

    turns: int
    runnable: int
    size_bytes: int
    oldest_age: timedelta
    namespaces_waiting: int
    next_jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """`removed` turns left pending; `runnable` could be claimed now, so the worker goes on or rings on."""

    removed: int
    runnable: int


class Pending:
    """The pending turns of one Redis. Every method is one atomic call and raises `RedisUnavailable`."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link, self._keys = link, keys
        names = ("accept", "claim", "heartbeat", "release", "settle", "read", "forget", "backlog")
        self._scripts = {name: Script(name, keys) for name in names}
        self._packed_head: tuple[tuple[PendingLimits, int], bytes] | None = None

    # the agent's side

    async def accept(
        self,
        offers: Sequence[Offer],
        *,
        limits: PendingLimits,
        bells: Sequence[bytes] = (),
        most_bells: int = BELLS,
    ) -> list[Accepted]:
        """Take turns and ring for them; an answer for each, in order. A job id that is pending already changes nothing.

        `bells` are Celery messages (outbox.doorbell) for the first offers; as many are pushed as turns were new, while
        fewer than `most_bells` wait in the queue's list. Positions are advanced past the session's highest, so that
        the order of a session is the order of acceptance, whatever the agents' clocks say.
        """
        channel = self._link.channel() or await self._link.connect()
        command = self.accept_command(offers, limits, bells, most_bells)
        try:
            answer = await channel.send(command)
        except UnknownScriptError:
            head = self._accept_head(limits, most_bells)
            answer = await self._scripts["accept"](self._link, *head, len(offers), *_offered_all(offers), *bells)
        return self.accepted(offers, answer)

    def accept_command(
        self, offers: Sequence[Offer], limits: PendingLimits, bells: Sequence[bytes], most_bells: int
    ) -> bytes:
        """The same as bytes for `Channel.send`, for a caller that reads the answer as it arrives (`accepted`)."""
        if self._packed_head is None or self._packed_head[0] != (limits, most_bells):
            self._packed_head = (limits, most_bells), packed(self._accept_head(limits, most_bells))
        arguments: list[Argument] = [len(offers), *_offered_all(offers), *bells]
        return self._scripts["accept"].packed(HEAD + len(arguments), self._packed_head[1], packed(arguments))

    @staticmethod
    def accepted(offers: Sequence[Offer], answer: Answer) -> list[Accepted]:
        """What the script's answer says about each offer."""
        return [_accepted(offer, each) for offer, each in zip(offers, answer[:-1], strict=True)]

    def _accept_head(self, limits: PendingLimits, most_bells: int) -> tuple[Argument, ...]:
        most_age = int(limits.age.total_seconds() * 1000)
        queue = self._keys.queue(STORE)
        return (queue, most_bells, limits.turns, limits.size_bytes, most_age, limits.turns_of_user)

    async def read(self, owner: Scope, *, limit: int) -> PendingRead:
        """The owner's newest turns with watermark and epoch; read it before the database, and drop doubles by id."""
        epoch, watermark, total, flat = await self._scripts["read"](self._link, owner_part(owner), limit)
        turns, unreadable = _decoded(flat)
        return PendingRead(
            turns=turns,
            total=total,
            watermark=None if watermark is None else Watermark.decode(watermark.decode()),
            epoch=None if epoch is None else Epoch.decode(epoch.decode()),
            unreadable=unreadable,
        )

    async def forget(self, owner: Scope, covers: Callable[[Episode], bool], *, whole_owner: bool = False) -> int:
        """Remove turns of which `covers` is true for every episode; how many. Write the tombstone first.

        A turn that is covered in part stays: its store transaction drops those episodes by the tombstone.
        """
        read = await self.read(owner, limit=2**31)
        gone = [turn.job_id for turn in read.turns if all(covers(episode) for episode in turn.episodes())]
        part, flag = owner_part(owner), "1" if whole_owner else "0"
        removed = 0
        for start in range(0, max(len(gone), 1), PAGE):
            ids = [str(job_id) for job_id in gone[start : start + PAGE]]
            removed += await self._scripts["forget"](self._link, part, flag, *ids)
        return removed

    # the workers' side

    async def claim(
        self, *, worker: str, token: LeaseToken, for_: timedelta, turns: int, size_bytes: int, max_lost: int
    ) -> list[ClaimedTurn]:
        """Take up to so many turns and bytes: namespaces in turn, owners in turn within each, an owner's oldest first.

        Counts the attempt now. A turn that lost a lease comes alone. An empty list: nothing can be claimed.
        """
        answers = await self._scripts["claim"](self._link, str(token), worker, _ms(for_), turns, size_bytes, max_lost)
        return [_claimed(answer, token) for answer in answers]

    async def heartbeat(self, ids: Sequence[JobId], *, token: LeaseToken, for_: timedelta) -> frozenset[JobId]:
        """Renew the leases; the jobs that the token still holds."""
        held = await self._scripts["heartbeat"](self._link, str(token), _ms(for_), *map(str, ids))
        return frozenset(JobId(UUID(job.decode())) for job in held)

    async def release(
        self, ids: Sequence[JobId], *, token: LeaseToken, after: timedelta = timedelta(0), counts: bool = False
    ) -> int:
        """Give turns back, to be claimed again `after` from now; how many were still ours.

        `counts=False` (an outage, a shutdown) gives the attempt back as well; `counts=True` is a failed try.
        """
        flag = "1" if counts else "0"
        return int(await self._scripts["release"](self._link, str(token), _ms(after), flag, *map(str, ids)))

    async def settle(self, ids: Sequence[JobId], *, watermark: Watermark | None) -> Settled:
        """After COMMIT (of the store, or of the dead letter): raise the owners' watermarks, remove the turns."""
        parts = ("", "", "") if watermark is None else (watermark.system, watermark.timeline, watermark.lsn)
        removed, runnable = await self._scripts["settle"](self._link, *parts, *map(str, ids))
        return Settled(removed=removed, runnable=runnable)

    async def backlog(self, *, name: int = 0) -> PendingBacklog:
        """How much is pending, and up to `name` ids to ring for. Leases that ran out count as runnable again."""
        turns, runnable, size, age, namespaces, jobs = await self._scripts["backlog"](self._link, name)
        return PendingBacklog(
            turns=turns,
            runnable=runnable,
            size_bytes=size,
            oldest_age=timedelta(milliseconds=age),
            namespaces_waiting=namespaces,
            next_jobs=tuple(JobId(UUID(job.decode())) for job in jobs),
        )


def _offered_all(offers: Sequence[Offer]) -> list[Argument]:
    return [argument for offer in offers for argument in _offered(offer)]


def _offered(offer: Offer) -> tuple[Argument, ...]:
    turn = offer.turn
    return (
        str(turn.job_id),
        owner_part(turn.scope),
        turn.scope.session_id or "",
        turn.base,
        len(turn.messages),
        "1" if offer.keep_base else "0",
        offer.payload,
    )


def _accepted(offer: Offer, answer: list[bytes | int]) -> Accepted:
    code, value = int(answer[0]), float(answer[1])
    if code in _REFUSALS:
        refusal = _REFUSALS[code]
        seconds = value / 1000 if refusal is Refusal.AGE else value
        return Accepted(base=offer.turn.base, refusal=refusal, value=seconds)
    return Accepted(base=int(answer[1]), known=code == 1)


def _claimed(answer: list[bytes], token: LeaseToken) -> ClaimedTurn:
    job, owner, payload, base, attempts, lost, at, poison = answer
    return ClaimedTurn(
        job_id=JobId(UUID(job.decode())),
        owner=owner_of(owner.decode()),
        payload=payload,
        base=int(base),
        attempts=int(attempts),
        lost_leases=int(lost),
        accepted_at=datetime.fromtimestamp(int(at) / 1000, UTC),
        token=token,
        poison=int(poison) == 1,
    )


def _decoded(flat: list[bytes]) -> tuple[tuple[Turn, ...], int]:
    turns, unreadable = [], 0
    for base, payload in zip(flat[-2::-2], flat[-1::-2], strict=True):
        try:
            turns.append(decode_turn(payload, base=int(base)))
        except errors.UnknownPayload:
            unreadable += 1
    return tuple(turns), unreadable


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
