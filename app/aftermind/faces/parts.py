"""What a `Memory` is made of, and what its faces do with several parts at once."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from aftermind import errors
from aftermind.db.base import Database, Transaction
from aftermind.faces.erasure import Deliveries
from aftermind.faces.looking import Looking
from aftermind.faces.ways import Ways
from aftermind.freshness import ReplicaLease, WatermarkDelivery
from aftermind.ledger.base import Ledger
from aftermind.ledger.replays import DeadLetters, Replays
from aftermind.llm.gate import Gate
from aftermind.outbox.base import Sent
from aftermind.recall import Recall, Routing
from aftermind.receipt import News, Receipt
from aftermind.settings import Settings
from aftermind.stores.base import Store
from aftermind.stores.keeping import Keeping
from aftermind.types import EmbedderIdentity, Scope, StoredEmbedders, Turn
from aftermind.types.api_key import StoredKeys
from aftermind.types.erasure import Generation
from aftermind.wire.connection import RedisLink
from aftermind.wire.pending import Pending

if TYPE_CHECKING:  # it loads SQLAlchemy, which a store of one process does without
    from aftermind.db.audit import Trail
    from aftermind.db.vault import Vault

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The rooms behind a `Memory`. What has a default is None where jobs run in this process.

    `embedders` answers those of the store, and the one that this process is configured with.
    """

    settings: Settings
    namespace: str
    db: Database
    store: Store
    ledger: Ledger
    events: News
    recall: Recall
    routing: Routing
    ways: Ways
    check_schema: Callable[[], Awaitable[None]]
    embedders: Callable[[], Awaitable[tuple[StoredEmbedders | None, EmbedderIdentity | None]]] | None = None
    redis: RedisLink | None = None
    pending: Pending | None = None
    delivery: WatermarkDelivery | None = None
    lease: ReplicaLease | None = None
    deliveries: Deliveries | None = None
    generation: Generation = field(default_factory=Generation)
    dead: DeadLetters | None = None
    replays: Replays | None = None
    keeping: Keeping | None = None
    looking: Looking | None = None
    keys: StoredKeys | None = None
    trail: "Trail | None" = None
    vault: "Vault | None" = None
    work: Database | None = None  # what operators look at goes through it: every tenant's, where the role allows it
    sees_all: bool = False
    gate: Gate = field(default_factory=Gate)
    wake: Callable[[], None] = lambda: None  # begin what was put into the ledger, where this process works it off
    closing: Sequence[Callable[[], Awaitable[None]]] = ()

    def scope(
        self,
        *,
        namespace: str | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
    ) -> Scope:
        """Who a call is for. Raises `InvalidScope`."""
        chosen = self.namespace if namespace is None else namespace
        return Scope(namespace=chosen, user_id=user_id, session_id=session_id, agent_id=agent_id)

    def kept(self, found: T | None) -> T:
        """What only a database keeps: dead letters, plans, keys … Raises `InvalidSettings` where there is none."""
        if found is None:
            why = "jobs run in this process, which keeps no dead letters, plans, keys and webhooks. Use Postgres."
            raise errors.InvalidSettings("store", "inmemory", why)
        return found

    def receipt(self, turn: Turn, sent: Sent) -> Receipt:
        """What the caller gets for a turn that was handed over."""
        confirm = None if self.delivery is None else self.delivery.confirm
        return Receipt(turn, spooled=sent.spooled, ledger=self.ledger, news=self.events, confirm=confirm)

    async def effect(self, owner: Scope, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Commit `work` for an owner; a recall that follows sees it, whichever replica serves.

        Takes up to `LONGEST_WAIT_SECONDS` longer while Redis does not answer.
        """
        rows: list[int] = []
        async with self.db.transaction(namespace=owner.namespace) as tx:
            result = await work(tx)
            if self.delivery is not None:
                rows = await self.delivery.add(tx, [owner])
        if self.delivery is not None:
            await self.delivery.deliver_or_outlast([owner], rows)
        return result

    async def close(self) -> None:
        """Let go of everything, the ways out first: what they still have goes out or stays on disk."""
        await self.ways.close()
        if self.deliveries is not None:
            await self.deliveries.close()
        for close in self.closing:
            await close()
