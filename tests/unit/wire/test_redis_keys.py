"""Owners as parts of keys: every id has its own, and comes back from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermind import errors
from aftermind.types import Scope
from aftermind.wire.redis_keys import Keys, owner_part, parse_owner

IDS = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1, max_size=20)
OWNERS = st.builds(Scope, namespace=IDS, user_id=st.none() | IDS)


@given(OWNERS, OWNERS)
def test_two_owners_never_share_a_key(one: Scope, other: Scope) -> None:
    assert (owner_part(one) == owner_part(other)) == (one == other)


@given(OWNERS)
def test_an_owner_comes_back_from_its_key(owner: Scope) -> None:
    assert parse_owner(owner_part(owner)) == owner


@given(OWNERS)
def test_labels_do_not_change_whose_key_it_is(owner: Scope) -> None:
    labelled = Scope(namespace=owner.namespace, user_id=owner.user_id, session_id="s", agent_id="a")

    assert owner_part(labelled) == owner_part(owner)


@given(OWNERS)
def test_no_key_of_an_owner_is_one_of_everybodys(owner: Scope) -> None:
    keys = Keys("p:")
    shared = {keys.rounds(), keys.served(), keys.leased(), keys.index(), keys.count(), keys.epoch()}

    assert not shared & {keys.pending(owner), keys.ready(owner), keys.high(owner), keys.watermark(owner)}


def test_the_longest_id_is_a_key() -> None:
    assert len(owner_part(Scope(user_id="ü" * 256))) < 2_000
    with pytest.raises(errors.InvalidScope, match="512 UTF-8 bytes"):
        Scope(user_id="ü" * 257)
