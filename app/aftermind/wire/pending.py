"""Turns that were handed over and that no store job has committed yet: accepted, claimed, settled in Redis."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from uuid import UUID

from aftermind import errors
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, LeaseToken, Scope, Turn, Watermark
from aftermind.types.job import is_last_chance, together
from aftermind.types.job_admin import PendingTurn
from aftermind.types.tombstone import Generation, Tombstone
from aftermind.wire.pending_types import (
    Accepted,
    ClaimedTurn,
    Offer,
    PendingBacklog,
    PendingLimit,
    PendingLimits,
    PendingRead,
    Settled,
)
from aftermind.wire.queues import STORE
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.connection import UnknownScriptError
from aftermind.wire.redis.resp import Answer, Argument, packed
from aftermind.wire.redis.script import Script
from aftermind.wire.redis_epoch import Epoch
from aftermind.wire.redis_keys import Keys, namespace_part, owner_part, parse_owner
from aftermind.wire.server_clock import ServerClock
from aftermind.wire.turn_encoding import decode_turn, encode_turn

__all__ = [
    "BELLS",
    "Accepted",
    "ClaimedTurn",
    "Offer",
    "Pending",
    "PendingBacklog",
    "PendingLimit",
    "PendingLimits",
    "PendingRead",
    "Settled",
]

log = get_logger(__name__)

BELLS = 16  # that wait at most in a list: more than a machine has idle workers, and each finds up to a batch of turns
SCRIPT_TURNS = 25  # turns per script: Redis is blocked for some 40 us per turn
HEAD = 6  # arguments of accept that are the same for every turn of a process
PARTS = 4  # of a turn in the answer of read
PAGE_TURNS = 1_000  # turns that forget processes in one call


_REFUSALS = {2: PendingLimit.TURNS, 3: PendingLimit.BYTES, 4: PendingLimit.AGE, 5: PendingLimit.USER}
_CONFLICT, _MOVED = 6, 7
_WHOLE = ("owner", "payload", "base", "generation", "from", "at", "sent")
_DESCRIBED = ("owner", "at", "size", "attempts", "worker", "token")


class Pending:
    """The pending turns of one Redis, or of one shard of a cluster.

    Every method is one atomic call and raises `RedisUnavailable`.

    A watermark or epoch that cannot be read is counted in `malformed`, and the recall is served by the primary.

    `generation` is the latest erasure that this process has received: each answer updates it, and it is sent to a Redis
    that was emptied. `clock` is the clock of this Redis, computed from its answers: each call carries the time at which
    it was sent, because a Redis that was suspended carries it out much later.
    """

    def __init__(self, link: RedisLink, keys: Keys, generation: Generation | None = None) -> None:
        self._link, self._keys = link, keys
        self.generation = generation or Generation()
        self.clock = ServerClock()
        self.shards: tuple[Pending, ...] = (self,)  # of a Redis Cluster, see wire.pending_shards
        self._malformed = 0
        agents = (
            "pending_accept",
            "pending_reserve_session_positions",
            "pending_read",
            "pending_erase",
            "erasure_generation_raise",
        )
        workers = (
            "pending_claim",
            "pending_renew_leases",
            "pending_release_leases",
            "pending_undo_claim",
            "pending_settle",
            "pending_backlog",
            "pending_lost_leases",
            "tenant_refuse_after_move",
        )
        self._scripts = {name: Script(name, keys) for name in (*agents, *workers)}
        self._packed_head: tuple[tuple[PendingLimits, int], bytes] | None = None

    @property
    def malformed(self) -> int:
        """Watermarks and epochs that could not be read, since the start."""
        return self._malformed

    def shard_of(self, owner: Scope) -> "Pending":
        """The shard that has the owner's turns; of a single server itself."""
        return self

    # the agent's side

    async def accept(
        self,
        offers: Sequence[Offer],
        *,
        limits: PendingLimits,
        bells: Sequence[bytes] = (),
        most_bells: int = BELLS,
    ) -> list[Accepted]:
        """Accept turns and send doorbells; returns an answer for each, in order. A job id that is already pending
        changes nothing.

        `bells` are Celery messages (outbox.doorbell) for the first offers; as many are pushed as turns were new, while
        fewer than `most_bells` wait in the queue's list. Positions are advanced past the session's highest, so that the
        order of a session is the order of acceptance, whatever the agents' clocks are.
        """
        channel = self._link.channel() or await self._link.connect()
        began = monotonic()
        command = self.accept_command(offers, limits, bells, most_bells)
        try:
            answer = await channel.send(command)
        except UnknownScriptError:
            head = self._accept_head(limits, most_bells)
            answer = await self._scripts["pending_accept"](self._link, *head, *self._accept_rest(offers, bells))
        return self.accepted(offers, answer, took=monotonic() - began)

    def accept_command(
        self, offers: Sequence[Offer], limits: PendingLimits, bells: Sequence[bytes], most_bells: int
    ) -> bytes:
        """The call of `accept` as bytes for `RedisConnection.send`, for a caller that reads the answer when it arrives
        (`accepted`).
        """
        if self._packed_head is None or self._packed_head[0] != (limits, most_bells):
            self._packed_head = (limits, most_bells), packed(self._accept_head(limits, most_bells))
        arguments = self._accept_rest(offers, bells)
        return self._scripts["pending_accept"].packed(HEAD + len(arguments), self._packed_head[1], packed(arguments))

    def accepted(self, offers: Sequence[Offer], answer: Answer, *, took: float) -> list[Accepted]:
        """Decode the script's answer for each offer; it arrived `took` seconds after the call."""
        *of_offers, _, generation, now = answer
        self.generation.learn(int(generation or 0))
        self.clock.read(now, took=took)
        return [_accepted(offer, *each) for offer, *each in zip(offers, of_offers[::2], of_offers[1::2], strict=True)]

    def _accept_head(self, limits: PendingLimits, most_bells: int) -> tuple[Argument, ...]:
        most_age = int(limits.age.total_seconds() * 1000)
        queue = self._keys.queue(STORE)
        return (queue, most_bells, limits.turns, limits.size_bytes, most_age, limits.turns_of_user)

    def _accept_rest(self, offers: Sequence[Offer], bells: Sequence[bytes]) -> list[Argument]:
        sent = self.clock.now_ms()
        offered = (argument for offer in offers for argument in _offered(offer))
        return [self.generation.as_argument, "" if sent is None else sent, len(offers), *offered, *bells]

    async def reserve(self, turns: Sequence[Turn]) -> tuple[list[Turn], frozenset[JobId]]:
        """Give turns that Postgres is to accept their place in the order of what Redis accepts.

        Also returns those whose idempotency key belongs to other content that is pending in Redis.
        """
        arguments = [
            (
                *(owner_part(turn.scope), turn.scope.session_id or "", turn.base, len(turn.messages)),
                *(str(turn.job_id), turn.content_hash or ""),
            )
            for turn in turns
        ]
        found = await self._scripts["pending_reserve_session_positions"](
            self._link, *(each for of_turn in arguments for each in of_turn)
        )
        placed = [
            replace(turn, base=int(base), counted_from=int(counted_from))
            for turn, base, counted_from in zip(turns, found[::3], found[1::3], strict=True)
        ]
        conflicts = (turn.job_id for turn, is_other in zip(turns, found[2::3], strict=True) if int(is_other))
        return placed, frozenset(conflicts)

    async def read(self, owner: Scope, *, limit: int, skip: int = 0) -> PendingRead:
        """The owner's newest turns with watermark and epoch; read it before the database, and drop doubles by id.

        `skip` passes over that many of the newest, for reading all of them page by page.
        """
        began = monotonic()
        answer = await self._scripts["pending_read"](self._link, owner_part(owner), limit, skip)
        epoch, watermark, total, flat, redis_ms, trusted_ms, generation, moved = answer
        self.generation.learn(int(generation or 0))
        self.clock.read(redis_ms, took=monotonic() - began)
        turns, unreadable = _decoded(flat, owner.owner)
        try:
            mark = None if watermark is None else Watermark.decode(watermark.decode())
            life = None if epoch is None else Epoch.decode(epoch.decode())
        except ValueError as exc:  # written by hand, or by an agent of the tenant
            self._malformed += 1
            log.warning("malformed watermark ignored: the primary serves", extra={"error": str(exc)[:200]})
            mark = life = None
        return PendingRead(
            turns=turns,
            total=total,
            watermark=mark,
            epoch=life,
            unreadable=unreadable,
            redis_ms=int(redis_ms),
            trusted_ms=int(trusted_ms),
            moved=moved.decode() if moved else None,
            generation=_number(generation),
        )

    async def forget(self, stone: Tombstone) -> list[JobId]:
        """Apply a committed erasure: from now on turns are accepted under its generation, and pending turns that it
        covers completely are removed; returns those. A repetition changes nothing.

        A turn that is covered in part stays: its store transaction drops those episodes because of the tombstone.
        Processed in pages, so that a user with many turns does not block others.
        """
        part = owner_part(stone.owner)
        whole = "all" if stone.is_whole else "session" if stone.is_session else "some"
        removed: list[JobId] = []
        kept = 0
        while True:
            read = await self.read(stone.owner, limit=PAGE_TURNS, skip=kept)
            gone = [str(turn.job_id) for turn in read.turns if stone.covers_all(turn)]
            seen = len(read.turns) + read.unreadable
            what = whole if seen < PAGE_TURNS else "some"
            head = (part, stone.generation, what, stone.session_id or "")
            removed += [
                JobId(UUID(job.decode())) for job in await self._scripts["pending_erase"](self._link, *head, *gone)
            ]
            kept += seen - len(gone)
            if seen < PAGE_TURNS:
                self.generation.learn(stone.generation)
                return removed

    async def raise_generation(
        self, number: int | None = None, *, begun: int | None = None
    ) -> tuple[int | None, int | None]:
        """Accept later turns under at least this number (None: only read it); returns the current one, and the one of
        turns that were accepted before Redis had any. That is set once, to `begun`: see `Database.generation_floor`.
        """
        given = ("" if each is None else each for each in (number, begun))
        found = await self._scripts["erasure_generation_raise"](self._link, *given)
        last, begun = (None if each is None else int(each) for each in found)
        self.generation.learn(last or 0)
        return last, begun

    # the workers' side

    async def claim(
        self,
        *,
        worker: str,
        token: LeaseToken,
        for_: timedelta,
        turns: int,
        size_bytes: int,
        max_lost: int,
        alone: bool = False,
        large: bool = True,
        except_namespaces: Collection[str] = (),
    ) -> list[ClaimedTurn]:
        """Claim up to a number of turns and bytes: namespaces in turn, owners in turn within each, an owner's oldest
        first.

        A turn counts by its size, so that a namespace with large turns gets no larger share. A turn larger than
        `LARGE_TURN_BYTES` is claimed alone; with `large` false such turns are skipped. So are those of
        `except_namespaces`.

        The attempt is counted now. Turns that lost a lease are claimed with others that lost as many, and fewer of them
        (`types.job.together`); those on their last chance only by a process without other jobs, which passes `alone`:
        others get nothing while one is next (`last_chance_is_next`). `SCRIPT_TURNS` per call: if one fails, return
        what the claim took by `return_claim`.
        """
        claimed: list[ClaimedTurn] = []
        head = (str(token), worker, _ms(for_))
        skipped = [namespace_part(namespace) for namespace in except_namespaces]
        suspects = [together(turns, lost, most=max_lost, alone=alone) for lost in range(1, max_lost)]
        while len(claimed) < turns:
            some = min(turns - len(claimed), SCRIPT_TURNS)
            left = size_bytes - sum(len(turn.payload) for turn in claimed)
            arguments: list[Argument] = [*head, some, left, max_lost, len(claimed), int(large)]
            arguments += [len(skipped), *skipped, *suspects]
            answers = await self._scripts["pending_claim"](self._link, *arguments)
            claimed += await self._valid_turns(answers, token)
            if len(answers) < some or (claimed and claimed[0].lost_leases):
                break
        return claimed

    async def _valid_turns(self, answers: Sequence[list[bytes]], token: LeaseToken) -> list[ClaimedTurn]:
        """Those that an agent can have written. Any others are removed: an entry by hand must not stop the rest."""
        claimed, malformed = [], []
        for answer in answers:
            try:
                claimed.append(_claimed(answer, token))
            except (ValueError, TypeError, OverflowError, OSError, errors.InvalidInput):
                malformed.append(answer[0])
        if malformed:
            log.error("malformed pending entries removed", extra={"turns": len(malformed)})
            await self._scripts["pending_settle"](self._link, "", "", "", 0, *malformed)
        return claimed

    async def last_chance_is_next(self, *, max_lost: int, except_namespaces: Collection[str] = ()) -> bool:
        """Whether the next turn can only be claimed with `alone`."""
        skipped = map(namespace_part, except_namespaces)
        return is_last_chance(int(await self._scripts["pending_lost_leases"](self._link, *skipped)), most=max_lost)

    async def heartbeat(self, ids: Sequence[JobId], *, token: LeaseToken, for_: timedelta) -> frozenset[JobId]:
        """Renew the leases; the jobs that the token still holds."""
        held = await self._scripts["pending_renew_leases"](self._link, str(token), _ms(for_), *map(str, ids))
        return frozenset(JobId(UUID(job.decode())) for job in held)

    async def release(
        self,
        ids: Sequence[JobId],
        *,
        token: LeaseToken,
        after: timedelta = timedelta(0),
        counts: bool = False,
        uncount_loss: bool = False,
    ) -> int:
        """Give turns back, to be claimed again `after` from now; how many were still ours.

        `counts=False` (an outage, a shutdown) gives the attempt back as well; `counts=True` is a failed try. With
        `uncount_loss` (Redis was away when they were to be given back) a lease that has run out since is not counted.
        """
        flag = "1" if counts else "2" if uncount_loss else "0"
        return int(
            await self._scripts["pending_release_leases"](self._link, str(token), _ms(after), flag, *map(str, ids))
        )

    async def return_claim(self, token: LeaseToken) -> int:
        """Give back what a claim took whose answer never arrived, the attempt uncounted; how many turns."""
        return int(await self._scripts["pending_undo_claim"](self._link, str(token)))

    async def settle(
        self, ids: Sequence[JobId], *, watermark: Watermark | None, owners: Iterable[Scope] = ()
    ) -> Settled:
        """After COMMIT (of the store, or of the dead letter): raise the owners' watermarks, remove the turns.

        `owners` are raised also where their turns have been removed already. One call: give it `SCRIPT_TURNS` at most
        where others wait for Redis.
        """
        parts = ("", "", "") if watermark is None else (watermark.system, watermark.timeline, watermark.lsn)
        also = sorted({owner_part(owner) for owner in owners})
        removed, runnable = await self._scripts["pending_settle"](self._link, *parts, len(also), *also, *map(str, ids))
        return Settled(removed=removed, runnable=runnable)

    # the move of a tenant to another database

    async def list_namespace(self, namespace: str, *, begun: int) -> tuple[list[Offer], int]:
        """Every pending turn of a namespace, the oldest first, and the time of Redis before they were read, in ms.

        `begun` is the generation of turns that were accepted before Redis had any. For operators: it reads the owner of
        every pending turn. Raises `UnknownPayload` for a turn of a later release.
        """
        seconds, micros = await self._link.call("TIME")
        part, found = f"{namespace_part(namespace)}/", list[Offer]()
        started_ms, seen = int(seconds) * 1000 + int(micros) // 1000, 0
        while named := await self._link.call("ZRANGE", self._keys.index(), seen, seen + PAGE_TURNS - 1):
            seen += len(named)
            for start in range(0, len(named), SCRIPT_TURNS):
                jobs = [job.decode() for job in named[start : start + SCRIPT_TURNS]]
                rows = await asyncio.gather(*(self._link.call("HMGET", self._keys.turn(job), *_WHOLE) for job in jobs))
                found += [_offer(row, begun, started_ms) for row in rows if row[0] and row[0].decode().startswith(part)]
        return found, started_ms

    async def switch(self, namespace: str, database: str, *, since_ms: int, known: Iterable[JobId]) -> list[JobId]:
        """Refuse the turns of a namespace from now on, because `database` serves it; returns turns accepted since then
        that are not `known` there. If there are any, nothing is changed.
        """
        jobs = map(str, known)
        missing = await self._scripts["tenant_refuse_after_move"](
            self._link, namespace_part(namespace), database, since_ms, *jobs
        )
        return [JobId(UUID(job.decode())) for job in missing]

    async def serve_elsewhere(self, namespace: str, database: str) -> None:
        """Repeat a `switch` that was made, whatever turns there are."""
        await self._link.call("SET", self._keys.moved(namespace_part(namespace)), database)

    async def serve_here(self, namespace: str) -> None:
        """Accept the turns of a namespace again, which a `switch` has refused."""
        await self._link.call("DEL", self._keys.moved(namespace_part(namespace)))

    async def list_oldest(self, limit: int) -> list[PendingTurn]:
        """Pending turns without their content, the oldest first. For operators: agents may not list job ids."""
        named = await self._link.call("ZRANGE", self._keys.index(), 0, limit - 1)
        found: list[PendingTurn | None] = []
        for start in range(0, len(named), PAGE_TURNS):
            found += await asyncio.gather(
                *(self.find(JobId(UUID(job.decode()))) for job in named[start : start + PAGE_TURNS])
            )
        return [each for each in found if each is not None]

    async def find(self, job_id: JobId) -> PendingTurn | None:
        """One pending turn without its content; None if it is not pending, or was written by hand."""
        owner, at, size, attempts, worker, token = await self._link.call("HMGET", self._keys.turn(job_id), *_DESCRIBED)
        try:
            return PendingTurn(
                job_id=job_id,
                owner=parse_owner(owner.decode()),
                accepted_at=datetime.fromtimestamp(int(at) / 1000, UTC),
                size_bytes=int(size),
                attempts=int(attempts or 0),
                worker=worker.decode() if worker and token else None,
            )
        except (AttributeError, TypeError, ValueError, OverflowError, OSError, errors.InvalidInput):
            return None

    async def backlog(self, *, name: int = 0, except_namespaces: Collection[str] = ()) -> PendingBacklog:
        """How much is pending, and up to `name` ids to ring for. Leases that ran out count as runnable again.

        `except_namespaces` are paused: their turns are counted, and have no part in `claimable_age`.
        """
        blocked = map(namespace_part, except_namespaces)
        found = await self._scripts["pending_backlog"](self._link, name, *blocked)
        turns, runnable, size, age, namespaces, jobs, claimable, handed_back = found
        return PendingBacklog(
            turns=turns,
            runnable=runnable,
            size_bytes=size,
            oldest_age=timedelta(milliseconds=age),
            namespaces_waiting=namespaces,
            next_jobs=tuple(JobId(UUID(job.decode())) for job in jobs),
            claimable_age=timedelta(milliseconds=claimable),
            handed_back=handed_back,
        )


def _offer(row: Sequence[bytes], begun: int, now_ms: int) -> Offer:
    """An entry with the fields of `_WHOLE`, as another Redis can accept it, with the time that it has waited."""
    _, payload, base, generation, counted_from, at, sent = row
    number = begun if generation == b"" else _number(generation)
    turn = decode_turn(payload, base=int(base), generation=number, counted_from=_number(counted_from))
    waited = max(0, now_ms - int(sent or at)) / 1000
    turn = replace(turn, spooled_seconds=turn.spooled_seconds + waited)
    return Offer(turn=turn, payload=encode_turn(turn), is_spooled=True)


def _offered(offer: Offer) -> tuple[Argument, ...]:
    turn = offer.turn
    return (
        str(turn.job_id),
        owner_part(turn.scope),
        turn.scope.session_id or "",
        turn.base,
        len(turn.messages),
        _generation_of(offer),
        turn.content_hash or "",
        offer.payload,
    )


def _generation_of(offer: Offer) -> int | str:
    turn = offer.turn
    if offer.is_spooled:
        return "-" if turn.generation is None else turn.generation
    return "" if turn.recalled is None else f"<{turn.recalled}"


def _accepted(offer: Offer, code: int, value: int | bytes) -> Accepted:
    if code == _MOVED:
        assert isinstance(value, bytes)
        return Accepted(base=offer.turn.base, moved=value.decode())
    refusal = _REFUSALS.get(code)
    if refusal is None:
        return Accepted(base=int(value), known=code == 1, conflict=code == _CONFLICT)
    seconds = float(value) / 1000 if refusal is PendingLimit.AGE else float(value)
    return Accepted(base=offer.turn.base, refusal=refusal, value=seconds)


def _claimed(answer: list[bytes], token: LeaseToken) -> ClaimedTurn:
    job, owner, payload, base, attempts, lost, at, poison, generation, counted_from, former = answer
    return ClaimedTurn(
        job_id=JobId(UUID(job.decode())),
        owner=parse_owner(owner.decode()),
        payload=payload,
        base=int(base),
        attempts=int(attempts),
        lost_leases=int(lost),
        former_worker=(former or b"").decode("utf-8", "replace"),
        accepted_at=datetime.fromtimestamp(int(at) / 1000, UTC),
        token=token,
        poison=int(poison) == 1,
        generation=_number(generation),
        counted_from=_number(counted_from),
        is_early=generation == b"",
    )


def _number(given: bytes | None) -> int | None:
    return int(given) if given and given != b"-" else None


def _decoded(flat: list[bytes], owner: Scope) -> tuple[tuple[Turn, ...], int]:
    turns, unreadable = [], 0
    for at in range(len(flat) - PARTS, -1, -PARTS):
        base, payload, generation, counted_from = flat[at : at + PARTS]
        try:
            given = {"generation": _number(generation), "counted_from": _number(counted_from)}
            turn = decode_turn(payload, base=int(base), **given)
        except (errors.UnknownPayload, TypeError, ValueError):  # of a later release, or written by hand
            unreadable += 1
            continue
        if turn.scope.owner == owner:
            turns.append(turn)
        else:
            unreadable += 1
    return tuple(turns), unreadable


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
