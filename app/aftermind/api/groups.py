"""`memory.groups`: memory that several users share, with members that read, or read and write.

A group is an owner like a user, and its members are internal items of it. What a member writes bears the member's id in
its metadata, so that it can be erased with the member.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import orjson

from aftermind import errors
from aftermind.api import conversation_history, forget_and_export
from aftermind.api.forget_and_export import Export, Forgot
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.stores.protocol import EpisodeFilter, StoredItem
from aftermind.types import Episode, Json, Message, Role, Scope
from aftermind.types.audit import Action
from aftermind.types.items import GROUPS, MEMBERS, from_name, internal_path, to_name
from aftermind.types.message import MEMBER
from aftermind.types.scope import GROUP_PREFIX, MAX_ID_BYTES
from aftermind.types.tombstone import Tombstone
from aftermind.types.validation import Given, Limits, normalise

MemberRole = Literal["reader", "writer"]
ROLES = ("reader", "writer")
BATCH_EPISODES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A user of a group: a `writer` reads and writes, a `reader` reads."""

    group: str
    user_id: str
    role: MemberRole


class Groups:
    """Groups and their members. Every call raises `InvalidScope` and `StoreUnavailable`.

    Calls of `Memory` that take `group` are made for a member: others get `NotThere`, whether the group exists or not.
    Membership is checked on the primary at each call, so that a removed member sees nothing from then on. This API is
    for the application, which decides on whose behalf it is called.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def add(
        self, group: str, user_id: str, *, role: MemberRole = "writer", namespace: str | None = None
    ) -> Member:
        """Make a user a member, or change the role; the group exists from its first member on."""
        if role not in ROLES:
            raise errors.InvalidScope("role", role, f"a member is one of {', '.join(ROLES)}.")
        owner, user = self._scopes(group, user_id, namespace)
        # First the user's side, which an erasure of the user follows, then the group's, which decides.
        await self._put(user, to_name(internal_path(GROUPS), group), {})
        await self._put(owner, _member_name(user_id), {"role": role}, member=user_id)
        return Member(group=group, user_id=user_id, role=role)

    async def remove(self, group: str, user_id: str, *, namespace: str | None = None) -> bool:
        """End a membership; whether there was one. What the member wrote stays: `memory.forget` erases it. By the
        group's name, which stays with the user until then, it is found.
        """
        owner, _ = self._scopes(group, user_id, namespace)
        return await _remove(self._parts, owner, user_id)

    async def export(self, group: str, *, namespace: str | None = None, vectors: bool = False) -> Export:
        """Everything of a group, of all its members, as `memory.export` has it of a user."""
        owner = group_scope(self._parts, group, namespace=namespace)
        return await forget_and_export.export(self._parts, owner, vectors=vectors)

    async def members(self, group: str, *, namespace: str | None = None) -> list[Member]:
        """The members of a group, by id; empty if there is no such group."""
        owner = group_scope(self._parts, group, namespace=namespace)
        found = await _read_items(self._parts, owner, MEMBERS)
        members = [_to_member(group, each) for each in found]
        return sorted(members, key=lambda each: each.user_id)

    async def list(self, user_id: str, *, namespace: str | None = None) -> list[Member]:
        """The memberships of a user, by group."""
        user = self._parts.scope(namespace=namespace, user_id=user_id)
        found = [await find_member(self._parts, group, user) for group in await _groups_of(self._parts, user)]
        return [each for each in found if each is not None]

    async def delete(self, group: str, *, namespace: str | None = None) -> forget_and_export.Forgot:
        """Erase a group: everything that was remembered in it, and all memberships.

        The group's name stays with each member until it is forgotten, so that an erasure of the member searches for
        what arrives late.
        """
        return await forget_and_export.forget(
            self._parts, Tombstone(owner=group_scope(self._parts, group, namespace=namespace))
        )

    def _scopes(self, group: str, user_id: str, namespace: str | None) -> tuple[Scope, Scope]:
        if user_id is None:
            raise errors.InvalidScope("user_id", None, "the anonymous user cannot be a member of a group.")
        user = self._parts.scope(namespace=namespace, user_id=user_id)
        return group_scope(self._parts, group, namespace=namespace), user

    async def _put(self, owner: Scope, name: str, value: Mapping[str, str], *, member: str | None = None) -> None:
        async def write(tx: Transaction) -> None:
            await self._parts.store.tombstones(tx, [owner])  # holds a forget of this owner off until the end
            now = datetime.now(UTC)
            item = StoredItem(name=name, content=orjson.dumps(value).decode(), created_at=now, updated_at=now)
            await self._parts.store.put_items(tx, owner, [item])
            if member is not None:
                await _audit(self._parts, tx, owner, {MEMBER: member, **value})

        await self._parts.effects.commit(owner, write)
        await _anchor(self._parts)


def group_scope(
    parts: Parts,
    group: object,
    *,
    namespace: str | None = None,
    session_id: str | None = None,
    agent_id: str | None = None,
) -> Scope:
    """The scope of a group. Raises `InvalidScope`."""
    if not isinstance(group, str) or not group or not group.isprintable():
        raise errors.InvalidScope("group", group, "it is printable text, not empty.")
    if len(group.encode()) > MAX_ID_BYTES - len(GROUP_PREFIX):
        raise errors.InvalidScope("group", group, f"it has at most {MAX_ID_BYTES - len(GROUP_PREFIX)} UTF-8 bytes.")
    chosen = parts.namespace if namespace is None else namespace
    return Scope(namespace=chosen, user_id=GROUP_PREFIX + group, session_id=session_id, agent_id=agent_id)


async def scope_of(
    parts: Parts,
    group: str | None,
    *,
    role: MemberRole = "reader",
    user_id: str | None,
    namespace: str | None = None,
    session_id: str | None = None,
    agent_id: str | None = None,
) -> Scope:
    """The scope of a user; with `group` that of the group, for a member with at least that role.

    Raises `NotThere` and `GroupReadOnly`.
    """
    user = parts.scope(namespace=namespace, user_id=user_id, session_id=session_id, agent_id=agent_id)
    if group is None:
        return user
    scope = group_scope(parts, group, namespace=namespace, session_id=session_id, agent_id=agent_id)
    member = None if user_id is None else await find_member(parts, group, user)
    if member is None:
        raise errors.NotThere("group", group)
    if role == "writer" and member.role != "writer":
        raise errors.GroupReadOnly(group, member.user_id)
    return scope


async def find_member(parts: Parts, group: str, user: Scope) -> Member | None:
    """The membership of a user, from the primary: a replica could be older than its end."""
    owner, name = group_scope(parts, group, namespace=user.namespace), _member_name(user.user_column)
    async with parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
        found = await parts.store.items(tx, owner, [name])
    return _to_member(group, found[0]) if found else None


def attributed(given: Given | Iterable[Given], user_id: str, limits: Limits) -> list[Message]:
    """The messages with the id of their member. Those of users have it as their name too, if they have no other.

    Facts are about a speaker by name: without one, those of two members would be about one user.
    """
    messages = normalise(given, limits, now=datetime.now(UTC))
    return [
        replace(
            each,
            name=each.name or (user_id if each.role is Role.USER else None),
            metadata={**each.metadata, MEMBER: user_id},
        )
        for each in messages
    ]


async def forget_user(
    parts: Parts, user: Scope, erase: Callable[[], Awaitable[Forgot]], *, note: str | None = None
) -> Forgot:
    """Erase what a user wrote in groups, with what was derived from it, and the user by `erase`; all counts together.

    The memberships end first, so that nothing is added. What a call that had begun before has stored since is found by
    the second erasure.
    """
    groups = await _groups_of(parts, user)
    erased = []
    for group in groups:
        await _remove(parts, group_scope(parts, group, namespace=user.namespace), user.user_column)
        erased.append(await forget_member(parts, user, group, Tombstone(owner=user), note=note))
    erased.append(await erase())
    erased += [await forget_member(parts, user, group, Tombstone(owner=user), note=note) for group in groups]
    return forget_and_export.add_up(erased)


async def forget_member(
    parts: Parts, user: Scope, group: str, asked: Tombstone, *, note: str | None = None
) -> forget_and_export.Forgot:
    """Erase what a user wrote in one group and `asked` fits, with what was derived from it.

    Turns out of reach (in the spool of another host, or while Redis does not answer) are dropped when they are stored.
    """
    owner = group_scope(parts, group, namespace=user.namespace)
    asked = replace(asked, owner=owner, member=user.user_column)
    return await forget_and_export.forget(parts, asked, note=note)


async def written_by(parts: Parts, owner: Scope, user_id: str) -> list[Episode]:
    """Every message of a group that a member wrote, pending ones included, oldest first."""
    found: list[Episode] = []
    before: Episode | None = None
    wanted = EpisodeFilter(metadata={MEMBER: user_id})
    while True:
        page = await conversation_history.search(
            parts, owner, conversation_history.paged(wanted, before), limit=BATCH_EPISODES
        )
        found = [*page, *found]
        if len(page) < BATCH_EPISODES:
            return found
        before = page[0]


async def written_in_groups(parts: Parts, user: Scope) -> list[Episode]:
    """Every message that a user wrote in groups, former ones included."""
    found: list[Episode] = []
    for group in await _groups_of(parts, user):
        found += await written_by(parts, group_scope(parts, group, namespace=user.namespace), user.user_column)
    return found


async def _groups_of(parts: Parts, user: Scope) -> list[str]:
    """The groups that a user is or was a member of."""
    if user.user_id is None:
        return []
    return sorted(from_name(each.name)[1] for each in await _read_items(parts, user.owner, GROUPS))


async def _read_items(parts: Parts, owner: Scope, kind: str) -> list[StoredItem]:
    async with parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
        return await parts.store.items_under(tx, owner, internal_path(kind))


async def _remove(parts: Parts, owner: Scope, user_id: str) -> bool:
    async def delete(tx: Transaction) -> bool:
        is_removed = bool(await parts.store.delete_items(tx, owner, [_member_name(user_id)]))
        if is_removed:
            await _audit(parts, tx, owner, {MEMBER: user_id, "removed": True})
        return is_removed

    is_removed = await parts.effects.commit(owner, delete)
    await _anchor(parts)
    return is_removed


async def _audit(parts: Parts, tx: Transaction, owner: Scope, detail: Mapping[str, Json]) -> None:
    if parts.trail is not None:
        await parts.trail.append(tx, owner.namespace, Action.EDIT, user_id=owner.user_id, detail=detail)


async def _anchor(parts: Parts) -> None:
    if parts.trail is not None:
        await parts.trail.anchor()


def _member_name(user_id: str) -> str:
    return to_name(internal_path(MEMBERS), user_id)


def _to_member(group: str, stored: StoredItem) -> Member:
    return Member(group=group, user_id=from_name(stored.name)[1], role=orjson.loads(stored.content)["role"])
