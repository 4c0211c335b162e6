"""Redis Cluster: `redis+cluster://[user:password@]host:port,host:port`, and the search for the primary of a slot."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import unquote, urlsplit

from aftermind import errors
from aftermind.wire.redis.connection import RedisConnection
from aftermind.wire.redis.resp import Answer
from aftermind.wire.redis.sentinel import check_login, login, parse_place, run

SCHEMES = ("redis+cluster", "rediss+cluster")
DEFAULT_PORT = 6379
SILENT_SECONDS = 2.0  # for which no shard of a node is called that did not answer: a worker would wait for each of them
KNOWN_SECONDS = 0.5  # for which one answer serves the connections of all shards; a node without the slot answers MOVED

Dial = Callable[[str, int], Awaitable[RedisConnection]]
Node = tuple[str, int]
Slots = list[tuple[int, int, Node, tuple[Node, ...]]]  # first, last, primary, replicas


@dataclass(slots=True)
class ClusterAddress:
    """A parsed URL, and the nodes that the cluster has named since."""

    seeds: tuple[Node, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    has_tls: bool = False
    _named: frozenset[Node] = frozenset()
    _slots: Slots = field(default_factory=list)
    _read_at: float = float("-inf")
    _silent: dict[Node, float] = field(default_factory=dict)

    def note_silent(self, node: Node) -> None:
        """The node accepted a connection or a command, and did not answer in time."""
        self._silent[node] = monotonic() + SILENT_SECONDS

    def is_silent(self, node: Node) -> bool:
        """Whether the node did not answer a moment ago."""
        return bool(self._silent) and monotonic() < self._silent.get(node, 0.0)

    async def find_primary(self, slot: int, dial: Dial) -> Node:
        """Host and port of the slot's primary, as most nodes name it. Raises `RedisUnavailable`."""
        if monotonic() - self._read_at > KNOWN_SECONDS:
            self._slots = await self._read_slots(dial)
            self._named = frozenset(node for *_, primary, replicas in self._slots for node in (primary, *replicas))
            self._read_at = monotonic()
        found = next((primary for first, last, primary, _ in self._slots if first <= slot <= last), None)
        if found is None:
            raise errors.RedisUnavailable(f"no node of the cluster has slot {slot}")
        if self.is_silent(found):
            raise errors.RedisUnavailable(f"{found[0]}:{found[1]} did not answer a moment ago")
        return found

    async def _read_slots(self, dial: Dial) -> Slots:
        """The slots as most of the nodes that answer have them; waits for no more than a majority."""
        places = (*self.seeds, *(self._named - set(self.seeds)))
        votes: Counter[tuple[tuple[int, int, Node, tuple[Node, ...]], ...]] = Counter()
        refusals: list[Exception] = []
        asked = [asyncio.create_task(self._ask(host, port, dial)) for host, port in places]
        try:
            for task in asyncio.as_completed(asked):
                try:
                    votes[tuple(sorted(await task))] += 1
                except (errors.RedisUnavailable, OSError) as exc:
                    refusals.append(exc)
                if votes.total() > len(asked) // 2:
                    break
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if not votes:
            raise errors.RedisUnavailable("; ".join(dict.fromkeys(map(str, refusals))))
        return list(votes.most_common(1)[0][0])

    async def _ask(self, host: str, port: int, dial: Dial) -> Slots:
        try:
            commands = [*login(self.username, self.password), ("CLUSTER", "SLOTS")]
            answer = await run(await dial(host, port), commands)
        except errors.Bug as exc:
            raise errors.RedisUnavailable(f"{host}:{port} is no node of a Redis Cluster, or refuses: {exc}") from exc
        return [
            (int(first), int(last), _node(nodes[0], host), tuple(sorted(_node(each, host) for each in nodes[1:])))
            for first, last, *nodes in answer
        ]


def is_cluster(url: str) -> bool:
    """Whether the URL names a Redis Cluster."""
    return url.partition("://")[0] in SCHEMES


def parse_url(url: str) -> ClusterAddress:
    """Parse `redis+cluster://user:password@h1:6379,h2`; `rediss+cluster://` with TLS. Raises `ValueError`."""
    parts = urlsplit(url)
    credentials, _, places = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    if parts.path.strip("/"):
        raise ValueError("a Redis Cluster has no numbered databases: leave the path out")
    check_login(unquote(username), unquote(password))
    return ClusterAddress(
        seeds=tuple(parse_place(place, default_port=DEFAULT_PORT) for place in places.split(",")),
        username=unquote(username) or None,
        password=unquote(password) or None,
        has_tls=parts.scheme.startswith("rediss"),
    )


def _node(answer: Answer, asked: str) -> Node:
    host = (answer[0] or b"").decode()
    return host if host not in ("", "?") else asked, int(answer[1])  # a node without a name has the one it was asked by
