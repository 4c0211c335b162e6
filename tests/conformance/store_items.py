"""What every store promises of items."""

from datetime import timedelta

import numpy as np

from aftermind.stores.protocol import StoredItem
from aftermind.types.items import to_name
from tests.conformance.store_fixtures import ALICE, BOB, NOW, Rig


def item(path: str, key: str, content: str = "{}", *, hours: int = 0, ttl: timedelta | None = None) -> StoredItem:
    """An item of a path such as `a/b`, written so many hours after noon."""
    at = NOW + timedelta(hours=hours)
    return StoredItem(name=to_name(path.split("/"), key), content=content, created_at=at, updated_at=at, ttl=ttl)


class ItemsContract:
    """Subclasses give the fixture `rig`."""

    async def test_an_item_is_replaced_as_a_whole_and_keeps_its_first_time(self, rig: Rig) -> None:
        await rig.do(lambda tx: rig.store.put_items(tx, ALICE, [item("a", "k", '{"n":1}')]))
        await rig.do(lambda tx: rig.store.put_items(tx, ALICE, [item("a", "k", '{"m":2}', hours=1)]))

        (found,) = await rig.do(lambda tx: rig.store.items(tx, ALICE, [to_name(["a"], "k"), to_name(["a"], "none")]))

        assert found == StoredItem(
            name="a\x1ek", content='{"m":2}', created_at=NOW, updated_at=NOW + timedelta(hours=1)
        )
        assert await rig.do(lambda tx: rig.store.items(tx, BOB, [found.name])) == []

    async def test_a_path_has_its_items_and_those_below_and_no_others(self, rig: Rig) -> None:
        names = ["a", "a/b", "a/b/c", "ab", "a b", "b", "a!"]
        given = [item(path, "k", hours=hours) for hours, path in enumerate(names)]
        await rig.do(lambda tx: rig.store.put_items(tx, ALICE, given))
        await rig.do(lambda tx: rig.store.put_items(tx, BOB, [item("a", "his")]))

        below = await rig.do(lambda tx: rig.store.items_under(tx, ALICE, ["a"]))
        newest = await rig.do(lambda tx: rig.store.items_under(tx, ALICE, [], limit=2))
        paths = await rig.do(lambda tx: rig.store.item_paths(tx, ALICE))

        assert [each.name for each in below] == ["a\x1fb\x1fc\x1ek", "a\x1fb\x1ek", "a\x1ek"]
        assert [each.name for each in newest] == ["a!\x1ek", "b\x1ek"]
        assert sorted(paths) == sorted(tuple(each.split("/")) for each in names)

    async def test_vectors_come_back_as_they_were_given(self, rig: Rig) -> None:
        vectors = np.asarray([[1.5, -2.0, 0.25], [0.0, 0.0, 1.0]], np.float32)
        given = item("a", "k")
        given = StoredItem(name=given.name, content="{}", created_at=NOW, updated_at=NOW, vectors=vectors)
        await rig.do(lambda tx: rig.store.put_items(tx, ALICE, [given, item("a", "none")]))

        found = {each.name: each.vectors for each in await rig.do(lambda tx: rig.store.items_under(tx, ALICE, []))}

        assert found["a\x1enone"] is None
        assert np.array_equal(found["a\x1ek"], vectors)  # type: ignore[arg-type]  # it has some

    async def test_an_expired_item_is_nowhere_and_a_renewed_one_lives(self, rig: Rig) -> None:
        given = [item("old", "k", ttl=timedelta(microseconds=1)), item("new", "k", ttl=timedelta(days=1))]
        await rig.do(lambda tx: rig.store.put_items(tx, ALICE, given))
        names = [each.name for each in given]
        (before,) = await rig.do(lambda tx: rig.store.items(tx, ALICE, names))

        await rig.do(lambda tx: rig.store.renew_items(tx, ALICE, names))

        (after,) = await rig.do(lambda tx: rig.store.items(tx, ALICE, names))
        assert before.expires_at is not None
        assert after.expires_at is not None
        assert after.expires_at > before.expires_at
        assert await rig.do(lambda tx: rig.store.item_paths(tx, ALICE)) == [("new",)]
        await rig.do(lambda tx: rig.store.put_items(tx, ALICE, []))
        assert (await rig.do(lambda tx: rig.store.counts(tx, ALICE)))["items"] == 1

    async def test_items_are_deleted_by_name_and_with_their_user(self, rig: Rig) -> None:
        for owner in (ALICE, BOB):
            given = [item("a", "1"), item("a", "2")]
            await rig.do(lambda tx, owner=owner, given=given: rig.store.put_items(tx, owner, given))  # type: ignore[misc]

        assert await rig.do(lambda tx: rig.store.delete_items(tx, ALICE, ["a\x1e1", "a\x1enone"])) == 1
        assert (await rig.forget())["items"] == 1

        assert await rig.do(lambda tx: rig.store.items_under(tx, ALICE, [])) == []
        assert len(await rig.do(lambda tx: rig.store.items_under(tx, BOB, []))) == 2

    async def test_a_write_that_is_rolled_back_leaves_nothing(self, rig: Rig) -> None:
        await rig.do(lambda tx: rig.store.put_items(tx, ALICE, [item("a", "k", '{"n":1}')]))

        await rig.undone(lambda tx: rig.store.put_items(tx, ALICE, [item("a", "k", '{"n":2}'), item("a", "more")]))

        (found,) = await rig.do(lambda tx: rig.store.items_under(tx, ALICE, []))
        assert found.content == '{"n":1}'
