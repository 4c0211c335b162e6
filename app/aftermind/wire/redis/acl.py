"""Redis users, one per kind of process, each with the keys and commands that it uses and no others.

What a user needs on a key follows from the Lua files that it calls (Redis checks the commands of a function like those
of a connection) and from the commands that it sends itself. So a new key or command of a Lua file needs no second entry
here. Each set of commands is granted on its own keys alone, by ACL selectors: Redis 7 or Valkey.

No user has KEYS, FLUSHALL, SHUTDOWN, DEBUG, EVAL or ACL SETUSER. An agent cannot list users,
tenants or job ids: it reads the pending turns of a user that it can name.
"""

import hashlib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, groupby

from aftermind import errors
from aftermind.wire import queues
from aftermind.wire.redis import script
from aftermind.wire.redis_keys import Keys, namespace_part

_CONNECTION = ("ping", "select", "client|setname", "client|setinfo", "time")
# Redis 7.0 does not start with an ACL file that names them; redis-py continues without.
_SINCE_7_2 = ("client|setinfo",)
_CLUSTER = ("cluster|slots",)  # which node has a shard
_LISTEN = ("subscribe", "unsubscribe")
_LOAD = ("function|load",)

# Which Lua files each kind of process calls.
_AGENT_SCRIPTS = (
    *(
        "pending_accept",
        "provider_admit",
        "pending_erase",
        "erasure_generation_raise",
        "watermark_raise",
        "pending_read",
        "pending_reserve_session_positions",
        "provider_report",
        "watermark_allow_replica_reads",
    ),
)
_WEB_SCRIPTS = (*_AGENT_SCRIPTS, "pending_backlog", "process_announce", "rate_count")
_WORKER_SCRIPTS = (
    "pending_backlog",
    "pending_claim",
    "pending_renew_leases",
    "pending_lost_leases",
    "pending_release_leases",
    "pending_undo_claim",
    "pending_settle",
    "epoch_compare_and_set",
    "process_announce",
    *_AGENT_SCRIPTS,
)

# The operator's user reaches every key.
_OPERATOR_SCRIPTS = ("tenant_refuse_after_move",)

# Commands that processes send without a Lua file, by the key's method in `wire.redis_keys.Keys`.
_AGENT_DIRECT: Mapping[str, tuple[str, ...]] = {
    "watermark": ("get",),
    "question": ("get", "set"),
    "provider": ("hmget",),
    "providers": ("smembers",),
    "epoch": ("get",),
    "audit": ("hsetnx",),  # it can add the end of a trail, and neither change nor remove one
    "queue": ("llen", "lpush"),
}
_WEB_DIRECT = {
    **_AGENT_DIRECT,
    "audit": ("hsetnx", "hscan"),
    "turn": ("hmget",),
    "index": ("zrange",),
    "processes": ("hgetall", "hdel"),
}
_WORKER_DIRECT = {
    **_AGENT_DIRECT,
    "audit": ("hsetnx", "hscan", "hdel"),
    "processes": ("hdel",),
    "moved": ("set",),
}
_DIRECT_OF_KOMBU = {
    "queue": ("llen", "brpop", "rpop", "rpush", "lpush", "del"),
}

# kombu's Redis transport in addition to the queues: unacknowledged messages, bindings, its remote control over pub/sub.
_KOMBU_KEYS = ("unacked*", "_kombu.*", "*.pidbox*", "celeryev*")
_KOMBU_COMMANDS = (
    *("brpop", "rpop", "rpush", "lpush", "llen", "srem", "sadd", "smembers", "exists", "get", "set", "del", "expire"),
    *("hset", "hdel", "hget", "zadd", "zrem", "zrevrangebyscore", "zrangebyscore", "zrange", "pexpire", "watch"),
)
_KOMBU_CONNECTION = (
    "script|exists",
    "unwatch",
    "multi",
    "exec",
    "discard",
    "psubscribe",
    "punsubscribe",
    *_LISTEN,
    "publish",
    "info",
)
# kombu keeps its bindings by two Lua scripts. Workers load them; Flower runs what is loaded and can send no Lua.
_KOMBU_LUA = ("script|load",)
# A subscription to a pattern is allowed where the rule is that very pattern, so they are spelt as kombu does; `/0` is
# the number of the database.
_KOMBU_CHANNELS = ("celery.pidbox", "reply.celery.pidbox", "celeryev", "celeryev/*", "celeryev/worker.*")

_CALL = re.compile(r"""redis\.p?call\(\s*'(\w+)'\s*,?\s*([A-Za-z_]\w*)?(\[1\])?""")
_ALIAS = r"local {name}(?:, \w+)* = ([A-Z_]+)\b"
_FUNCTION = re.compile(r"^local function (\w+)\(.*?\n(.*?)^end", re.MULTILINE | re.DOTALL)
_KEYLESS = frozenset({"time"})
_ANY = frozenset({"@read", "@write"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisUser:
    """A user: commands without keys, commands by key pattern, channels. The password is no part of it."""

    name: str
    commands: tuple[str, ...]
    keys: Mapping[str, frozenset[str]]
    channels: tuple[str, ...] = ()

    def rules(self, password: str) -> list[str]:
        """What follows `ACL SETUSER name`. It begins with `reset`, so that nothing of an earlier release stays."""
        hashed = hashlib.sha256(password.encode()).hexdigest()
        allowed = [f"+{each}" for each in sorted(set(self.commands))]
        channels = [f"&{each}" for each in self.channels]
        return ["reset", "on", f"#{hashed}", *channels, "-@all", *allowed, *self._selectors()]

    def line(self, password: str) -> str:
        """The user as a line of an ACL file, for every server from Redis 7.0 on."""
        known = replace(self, commands=tuple(each for each in self.commands if each not in _SINCE_7_2))
        return " ".join(("user", self.name, *known.rules(password)[1:]))

    def _selectors(self) -> list[str]:
        """One for each set of commands, with every key that it is granted on."""
        by_commands = sorted(self.keys, key=lambda pattern: (sorted(self.keys[pattern]), pattern))
        made = []
        for commands, patterns in groupby(by_commands, key=lambda pattern: sorted(self.keys[pattern])):
            granted = [f"+{each}" for each in commands]
            if commands == sorted(_ANY):
                granted.append("-@dangerous")  # FLUSHALL writes too
            made.append(f"({' '.join([*(f'~{pattern}' for pattern in patterns), '-@all', *granted])})")
        return made


def cluster_users(prefix: str, *, namespace: str | None = None) -> Mapping[str, RedisUser]:
    """The users of a Redis Cluster, without what the broker's are for, which is another server."""
    keys = Keys(prefix, shard="*")
    made = users(prefix, namespace=namespace, keys=keys)
    return {
        name: replace(
            user,
            commands=(*(each for each in user.commands if each not in (*_KOMBU_CONNECTION, *_KOMBU_LUA)), *_CLUSTER)
            + (("info", "publish") if name in ("worker", "reconciler", "operator") else ())
            + _LISTEN,
            keys={keys.route(): frozenset({"fcall"})}
            | {pattern: granted for pattern, granted in user.keys.items() if pattern.startswith(keys.start)},
            channels=tuple(each for each in user.channels if each.startswith(keys.start)),
        )
        for name, user in made.items()
        if name != "flower"
    }


def users(
    prefix: str, *, database: int = 0, namespace: str | None = None, keys: Keys | None = None
) -> Mapping[str, RedisUser]:
    """The users under one prefix (`settings.redis_prefix`), in that database of the broker.

    With a `namespace` the only one is an agent's that reaches the users of that tenant alone.
    """
    keys = keys or Keys(prefix)
    events = f"{keys.events('' if namespace is None else namespace_part(namespace) + '/')}*"
    agent = RedisUser(
        name="aftermind-agent" if namespace is None else f"aftermind-agent-{namespace_part(namespace)}",
        commands=(*_CONNECTION, *_LISTEN, "fcall"),
        keys=_granted(keys, _AGENT_SCRIPTS, _AGENT_DIRECT, namespace=namespace),
        channels=(events,),
    )
    if namespace is not None:
        return {"agent": agent}
    channels = tuple(f"{prefix}/{database}.{each}" for each in _KOMBU_CHANNELS)
    kombu = {f"{prefix}{each}": frozenset((*_KOMBU_COMMANDS, "evalsha")) for each in _KOMBU_KEYS}
    lists = [f"{keys.queue(name)}*" for name in queues.QUEUES]  # kombu pops from a list for each priority
    return {
        "agent": agent,
        "web": RedisUser(
            name="aftermind-web",
            commands=(*_CONNECTION, *_LISTEN, "fcall"),
            keys=_granted(keys, _WEB_SCRIPTS, _WEB_DIRECT),
            channels=(events,),
        ),
        "worker": RedisUser(
            name="aftermind-worker",
            commands=(*_CONNECTION, *_KOMBU_CONNECTION, *_KOMBU_LUA, *_LOAD, "fcall"),
            keys={
                **_granted(keys, _WORKER_SCRIPTS, {**_WORKER_DIRECT, **_DIRECT_OF_KOMBU}, queue_pattern="{}*"),
                **kombu,
            },
            channels=(events, *channels),
        ),
        "reconciler": RedisUser(  # it sends doorbells, and takes none
            name="aftermind-reconciler",
            commands=(*_CONNECTION, *_LISTEN, *_LOAD, "publish", "info", "fcall"),
            keys=_granted(keys, _WORKER_SCRIPTS, _WORKER_DIRECT),
            channels=(events,),
        ),
        # It shows: no push to a queue, so it can send no task, whatever its screens offer.
        "flower": RedisUser(
            name="aftermind-flower",
            commands=(*_CONNECTION, *_KOMBU_CONNECTION),
            keys={**{name: frozenset({"llen"}) for name in lists}, **kombu},
            channels=channels,
        ),
        # A person: `aftermind doctor`, `audit verify`, `forget --prove`, `migrate`. No process that runs by itself.
        "operator": RedisUser(
            name="aftermind-operator",
            commands=(*_CONNECTION, *_LISTEN, *_LOAD, "fcall", "publish", "info", "config|get", "acl|whoami", "scan"),
            keys={f"{keys.start}*": _ANY},
            channels=(events,),
        ),
    }


def merge(users: Sequence[RedisUser]) -> RedisUser:
    """One user with the rights of all of these: of one kind of process, under several prefixes."""
    keys: dict[str, frozenset[str]] = {}
    for pattern, commands in chain.from_iterable(user.keys.items() for user in users):
        keys[pattern] = keys.get(pattern, frozenset()) | commands
    channels = dict.fromkeys(chain.from_iterable(user.channels for user in users))
    return replace(users[0], keys=keys, channels=tuple(channels))


@cache
def lua_commands(script_name: str) -> Mapping[str, frozenset[str]]:
    """The commands that a Lua file sends, by the name of the key's constant (`Keys.in_lua`); `queue` for a list.

    Raises `Bug` for a call whose key cannot be determined from the text: name the key's constant in the call, or in a
    `local key = CONSTANT …` of the same file.
    """
    shared = {name: body for part in script.SHARED for name, body in _FUNCTION.findall(script.source(part))}
    constants = Keys().in_lua()
    found: dict[str, set[str]] = defaultdict(set)
    for text in _reached(script.source(script_name), shared):
        for command, named, is_first_argument in _CALL.findall(text):
            if command.lower() in _KEYLESS:
                continue
            aliases = constants.keys() & re.findall(_ALIAS.format(name=re.escape(named)), text)
            if named in constants:
                found[named].add(command.lower())
            elif len(aliases) == 1:
                found[aliases.pop()].add(command.lower())
            elif named == "queue" or (named == "ARGV" and is_first_argument):
                found["queue"].add(command.lower())
            else:
                raise errors.Bug(f"{script_name}.lua: the key of {command} {named} is not one of wire/redis_keys.py.")
    return {constant: frozenset(commands) for constant, commands in found.items()}


def _reached(text: str, shared: Mapping[str, str]) -> list[str]:
    """A file's text, and the bodies of the shared functions that it calls, directly or through others."""
    texts, left = [text], dict(shared)
    for each in texts:
        for name in [name for name in left if re.search(rf"\b{name}\(", each)]:
            texts.append(left.pop(name))  # noqa: PERF401  # the outer loop reads what is added
    return texts


def _granted(
    keys: Keys,
    scripts: Iterable[str],
    direct: Mapping[str, Iterable[str]],
    *,
    namespace: str | None = None,
    queue_pattern: str = "{}",
) -> dict[str, frozenset[str]]:
    wanted: dict[str, set[str]] = defaultdict(set)
    for name in scripts:
        for constant, commands in lua_commands(name).items():
            wanted[constant.lower()] |= commands
    for method, sent in direct.items():
        wanted[method] |= set(sent)
    granted: dict[str, set[str]] = defaultdict(set)
    for method, needed in wanted.items():
        for pattern in _patterns(keys, method, namespace, queue_pattern):
            granted[pattern] |= needed
    return {pattern: frozenset(commands) for pattern, commands in granted.items()}


def _patterns(keys: Keys, method: str, namespace: str | None, queue_pattern: str) -> list[str]:
    """The key patterns of a method of `Keys`, narrowed to a tenant where the key's name has one."""
    if method == "queue":
        return [queue_pattern.format(keys.queue(name)) for name in queues.QUEUES]
    part = "*" if namespace is None else namespace_part(namespace)
    given = {"namespace": part, "owner": "*" if namespace is None else f"{part}/*"}
    make: Callable[..., str] = getattr(keys, method)
    return [make(**{name: given.get(name, "*") for name in inspect.signature(make).parameters})]
