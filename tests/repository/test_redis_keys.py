"""No Redis key is spelt anywhere but in `wire/redis_keys.py`, and each has its legend there."""

import ast
import inspect
import re
from pathlib import Path
from uuid import UUID

import pytest
from redis.crc import key_slot

import aftermind
from aftermind.types import JobId, Scope
from aftermind.wire import redis_keys
from aftermind.wire.redis import acl, script

ROOT = Path(aftermind.__file__).parents[2]
SOURCES = [ROOT / name for name in ("app", "tasks", "workers")]
LEGEND = Path(redis_keys.__file__)
STEMS = sorted(
    {str(value).removeprefix("aftermind:") for value in redis_keys.Keys().in_lua().values() if isinstance(value, str)}
)


@pytest.mark.parametrize("stem", STEMS)
def test_the_legend_explains_each_key(stem: str) -> None:
    methods = [
        value for name, value in vars(redis_keys.Keys).items() if inspect.isfunction(value) and not name.startswith("_")
    ]

    explained = [
        method
        for method in methods
        if method.__doc__ and f"{{self.start}}{stem.rstrip(':')}" in inspect.getsource(method)
    ]

    assert explained, f"{stem} has no method with a docstring in {LEGEND.name}"


def test_no_python_file_spells_a_key() -> None:
    spelt = re.compile(r"aftermind:\w|\bprefix\}\w")
    offenders = [
        f"{path}:{node.lineno}"
        for root in SOURCES
        for path in root.rglob("*.py")
        if path != LEGEND
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and spelt.search(node.value)
    ]

    assert not offenders


def test_no_lua_file_spells_a_key() -> None:
    lua = list(Path(aftermind.__file__).parent.rglob("*.lua"))
    spelt = re.compile(r"""["'](?:aftermind|[a-z]+):""")

    assert lua
    assert not [path.name for path in lua if spelt.search(path.read_text())]


def test_each_lua_file_is_called_by_a_role() -> None:
    """What a Redis user may do follows from the Lua files of its role: a file in no list would be refused to all."""
    lua = {path.stem for path in Path(aftermind.__file__).parent.joinpath("wire").rglob("*.lua")} - set(script.SHARED)
    roles = {*acl._AGENT_SCRIPTS, *acl._WEB_SCRIPTS, *acl._WORKER_SCRIPTS, *acl._OPERATOR_SCRIPTS}

    assert lua == roles


def test_owners_never_share_a_key() -> None:
    names = (None, "", "@", "a/b", "a", "b", "%40", "*", "ä", "a:b")
    owners = [Scope(namespace=ns, user_id=user) for ns in ("a", "a/b", "*") for user in names if user != ""]

    assert len({redis_keys.Keys().pending(owner) for owner in owners}) == len(owners)
    assert all(redis_keys.parse_owner(redis_keys.owner_part(owner)) == owner for owner in owners)


def test_all_keys_of_a_shard_are_in_one_slot_of_the_cluster() -> None:
    keys = [redis_keys.Keys(shard=number) for number in range(redis_keys.SHARDS)]
    strings = [{value for value in each.in_lua().values() if isinstance(value, str)} | {each.route()} for each in keys]

    assert all(len({key_slot(value.encode()) for value in values}) == 1 for values in strings)
    assert [redis_keys.slot(number) for number in range(redis_keys.SHARDS)] == [
        key_slot(each.route().encode()) for each in keys
    ]


def test_the_slots_of_shards_never_change_and_are_evenly_distributed() -> None:
    """Another slot or shard would hide the pending turns of a running deployment."""
    slots = [redis_keys.slot(number) for number in range(redis_keys.SHARDS)]

    assert slots[:3] == [442, 1901, 2076]
    assert [each * redis_keys.SHARDS // redis_keys.SLOTS for each in slots] == list(range(redis_keys.SHARDS))
    assert redis_keys.shard_number(Scope(namespace="default", user_id="ada")) == 6


def test_jobs_never_share_a_key() -> None:
    assert redis_keys.Keys().turn(JobId(UUID(int=1))) != redis_keys.Keys().turn(JobId(UUID(int=2)))
