"""Redis users for agents, workers and Flower, each with the commands and keys that it really uses, and no more.

A script's own commands are checked like those of a connection, so they are listed too. What nobody gets: KEYS, SCAN,
FLUSHALL, CONFIG, DEBUG, SHUTDOWN, and for an agent anything that reads a job or speaks to workers.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from aftermind.wire import queues
from aftermind.wire.keys import Keys

_CONNECTION = ("ping", "select", "client|setname", "client|setinfo")
_SCRIPTS = ("eval", "evalsha", "time")
_PENDING = (
    *(
        "zadd",
        "zcard",
        "zrem",
        "zrange",
        "zrevrange",
        "zrangebyscore",
        "zscore",
        "exists",
        "expire",
        "del",
        "llen",
        "lpush",
    ),
    *("hget", "hmget", "hset", "hsetnx", "hdel", "hincrby", "hlen", "hgetall", "sadd", "smembers"),
    *("get", "mget", "set", "zremrangebyscore"),
)
# kombu's Redis transport: the pop, what is not acknowledged yet, bindings, and its pidbox over pub/sub.
_KOMBU = (
    *("brpop", "rpop", "rpush", "srem", "sadd", "smembers", "zrevrangebyscore", "watch", "unwatch", "multi", "exec"),
    *(
        "discard",
        "psubscribe",
        "punsubscribe",
        "subscribe",
        "unsubscribe",
        "publish",
        "pexpire",
        "script|load",
        "script|exists",
    ),
)
_KOMBU_LOOKING = (
    *("llen", "exists", "sadd", "srem", "smembers", "get", "set", "del", "brpop", "multi", "exec", "hset", "hdel"),
    *("zadd", "zrem", "zrevrangebyscore", "psubscribe", "punsubscribe", "subscribe", "unsubscribe", "publish"),
    *("watch", "unwatch", "discard", "pexpire", "expire", "hget", "lpush", "info"),
    # What a script does is checked like what a connection does; these are of the transport's own.
    *("eval", "evalsha", "script|load", "script|exists", "time", "zrangebyscore", "zrange"),
)
_CELERY_KEYS = ("unacked*", "_kombu.*", "*.pidbox*", "celeryev*")
# A subscription to a pattern is allowed where the rule is that very pattern, so they are spelt as kombu does; `/0` is
# the number of the database.
_CELERY_CHANNELS = ("celery.pidbox", "reply.celery.pidbox", "celeryev", "celeryev/*", "celeryev/worker.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisUser:
    """A user and its rules, in the words of ACL SETUSER; the password comes beside."""

    name: str
    commands: tuple[str, ...]
    keys: tuple[str, ...]
    channels: tuple[str, ...]

    def rules(self, password: str) -> list[str]:
        """What follows `ACL SETUSER name`: everything anew, so that nothing stays of an earlier release."""
        hashed = hashlib.sha256(password.encode()).hexdigest()
        may = [f"+{each}" for each in sorted(set(self.commands))]
        keys = (each if each.startswith("%") else f"~{each}" for each in self.keys)
        return ["reset", "on", f"#{hashed}", *(f"&{each}" for each in self.channels), *keys, "-@all", *may]

    def line(self, password: str) -> str:
        """The same as a line of an ACL file."""
        return " ".join(("user", self.name, *self.rules(password)[1:]))


def users(prefix: str, *, database: int = 0) -> Mapping[str, RedisUser]:
    """The three users under one prefix (`settings.redis_prefix`), in that database of the broker."""
    keys = Keys(prefix)
    stems = (keys.turn(""), keys.pending(""), keys.ready(""), keys.high(""), keys.counted_from(""), keys.provider(""))
    pending = [
        *(f"{stem}*" for stem in stems),
        *(
            f"{prefix}rounds",
            f"{prefix}rounds:*",
            keys.served(),
            keys.finished(),
            keys.leased(),
            keys.index(),
            keys.count(),
        ),
        *(keys.generation(), keys.providers(), f"{prefix}question:*", keys.audit()),
    ]
    lists = [keys.queue(name) for name in queues.QUEUES]
    popped = [f"{name}*" for name in lists]  # kombu pops from a list for each priority
    events = f"{keys.events('')}*"
    celery = [f"{prefix}{each}" for each in _CELERY_KEYS]
    channels = [f"{prefix}/{database}.{each}" for each in _CELERY_CHANNELS]
    marks = [
        f"{keys.watermark('')}*",
        f"{keys.trusted('')}*",
        f"%R~{keys.epoch()}",
    ]  # an agent's own edits raise the watermark too
    return {
        "agent": RedisUser(
            name="aftermind-agent",
            commands=(*_CONNECTION, *_SCRIPTS, *_PENDING, "subscribe", "unsubscribe"),
            keys=(*pending, *lists, *marks),
            channels=(events,),
        ),
        "worker": RedisUser(
            name="aftermind-worker",
            commands=(*_CONNECTION, *_SCRIPTS, *_PENDING, *_KOMBU, "info"),
            keys=(*pending, *popped, f"{keys.watermark('')}*", f"{keys.trusted('')}*", keys.epoch(), *celery),
            channels=(events, *channels),
        ),
        # It looks: no push to a queue, so it can send no task, whatever its screens offer.
        "flower": RedisUser(
            name="aftermind-flower",
            commands=(*_CONNECTION, *_KOMBU_LOOKING),
            keys=(*(f"%R~{stem}" for stem in popped), *celery),
            channels=tuple(channels),
        ),
    }
