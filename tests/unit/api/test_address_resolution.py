"""Arguments stand above settings, settings above the embedded stack; what cannot work is said at once."""

import json
import ssl
import traceback
from pathlib import Path
from typing import Any

import certifi
import pytest

from aftermind import Memory, errors
from aftermind.api.address_resolution import resolve, spool_deployment
from aftermind.outbox.spool_deployment import EMBEDDED_DATABASE
from aftermind.settings import Settings

POSTGRES, REDIS, AMQP = "postgresql://u:secret@db/a", "redis://:secret@r:6379/0", "amqp://u:secret@q/"
CLUSTER = "redis+cluster://:secret@c1,c2:7001,c3"


def _settings(folder: Path, **given: Any) -> Settings:  # Any: values of settings
    return Settings(state_dir=folder, **given)


def _stack_is_up(folder: Path) -> None:
    known = {
        "postgres_url": "postgresql://here/a",
        "replica_urls": ["postgresql://there/a"],
        "redis_url": "redis://here",
    }
    (folder / "endpoints.json").write_text(json.dumps(known))


def test_a_redis_broker_is_also_the_redis_of_pending(tmp_path: Path) -> None:
    found = resolve(_settings(tmp_path), url=POSTGRES, broker=REDIS)

    assert (found.store, found.broker, found.redis) == (POSTGRES, REDIS, REDIS)
    assert not found.is_in_process


def test_a_redis_alone_is_also_the_broker(tmp_path: Path) -> None:
    found = resolve(_settings(tmp_path), url=POSTGRES, redis=REDIS)

    assert (found.broker, found.redis) == (REDIS, REDIS)


def test_rabbitmq_needs_a_redis_beside_it(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match="redis="):
        resolve(_settings(tmp_path), url=POSTGRES, broker=AMQP)

    assert resolve(_settings(tmp_path), url=POSTGRES, broker=AMQP, redis=REDIS).broker == AMQP


def test_settings_name_what_arguments_do_not(tmp_path: Path) -> None:
    found = resolve(_settings(tmp_path, database_url=POSTGRES, broker_url=REDIS, replica_urls=(POSTGRES,)))

    assert (found.store, found.redis, found.replicas) == (POSTGRES, REDIS, (POSTGRES,))


def test_an_argument_stands_above_a_setting(tmp_path: Path) -> None:
    settings = _settings(tmp_path, database_url="postgresql://old/a", broker_url=REDIS)

    assert resolve(settings, url=POSTGRES).store == POSTGRES


def test_without_anything_it_is_the_embedded_stack_that_is_up(tmp_path: Path) -> None:
    _stack_is_up(tmp_path)

    found = resolve(_settings(tmp_path))

    assert (found.store, found.redis, found.replicas) == (
        "postgresql://here/a",
        "redis://here",
        ("postgresql://there/a",),
    )


def test_replicas_of_the_settings_stand_above_those_of_the_embedded_stack(tmp_path: Path) -> None:
    _stack_is_up(tmp_path)

    of_settings = resolve(_settings(tmp_path, replica_urls=("postgresql://own/a",)))
    of_the_call = resolve(_settings(tmp_path), replicas=["postgresql://mine/a"])

    assert (of_settings.store, of_settings.replicas) == ("postgresql://here/a", ("postgresql://own/a",))
    assert of_the_call.replicas == ("postgresql://mine/a",)


@pytest.mark.parametrize("source", ["argument", "setting"])
@pytest.mark.parametrize(
    ("given", "redis", "broker"),
    [
        ({"redis": REDIS}, REDIS, REDIS),
        ({"broker": REDIS}, "redis://here", REDIS),
        ({"broker": AMQP}, "redis://here", AMQP),
        ({"redis": CLUSTER, "broker": REDIS}, CLUSTER, REDIS),
    ],
)
def test_redis_and_broker_that_are_given_replace_those_of_the_embedded_stack(
    tmp_path: Path, source: str, given: dict[str, str], redis: str, broker: str
) -> None:
    _stack_is_up(tmp_path)
    if source == "argument":
        found = resolve(_settings(tmp_path), **given)
    else:
        found = resolve(_settings(tmp_path, **{f"{name}_url": value for name, value in given.items()}))

    assert (found.store, found.redis, found.broker) == ("postgresql://here/a", redis, broker)


def test_a_turn_for_another_redis_than_the_embedded_one_is_spooled_for_that_redis(tmp_path: Path) -> None:
    _stack_is_up(tmp_path)
    settings = _settings(tmp_path, redis_url=REDIS)

    deployment = spool_deployment(settings, resolve(settings))

    assert (deployment.redis, deployment.database) == ("r:6379/0/aftermind:", EMBEDDED_DATABASE)


@pytest.mark.parametrize(
    "url",
    ["redis//:secret@127.0.0.1", "redis:secret@h", "http://:secret@h", "redis://:secret@h:x", "redis://u/secret@h"],
)
@pytest.mark.parametrize("name", ["broker_url", "redis_url"])
@pytest.mark.parametrize("store", [None, "inmemory", "sqlite:bot.db", POSTGRES])
def test_a_malformed_setting_is_refused_by_its_name_also_where_it_is_not_used(
    tmp_path: Path, store: str | None, name: str, url: str
) -> None:
    _stack_is_up(tmp_path)

    with pytest.raises(errors.InvalidSettings, match=f"^AFTERMIND_{name.upper()}=") as refused:
        resolve(_settings(tmp_path, **{name: url}), url=store)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://h/0?virtual_host=x", "virtual_host=x is not the number of a database"),
        ("redis://h?db=x", "db"),
        ("redis://h?unheard_of=1", "unheard_of"),
        ("redis://h?retry=3", "unknown option 'retry'"),
        ("redis://h?credential_provider=x", "unknown option 'credential_provider'"),
        ("redis://h?connection_class=x", "refuses an option"),
        ("redis://h/abc", "not the number of a database"),
        ("rediss://h/1/2", "not the number of a database"),
        ("unix://", "name the path of the socket"),
        ("redis+socket://?virtual_host=1", "name the path of the socket"),
        ("rediss://h?ssl_cert_reqs=CERT_FOO", "foo"),
        ("rediss://h?ssl_keyfile=/x", "TLS is not possible with ssl_keyfile: certfile should be"),
        ("rediss://h?ssl_ca_certs=/nope", "TLS is not possible with ssl_ca_certs: .*No such file"),
        ("rediss://h?ssl_ciphers=foo", "TLS is not possible with ssl_ciphers: .*cipher"),
        ("redis://alice@h", "a user without a password"),
        ("redis://alice:@h", "a user without a password"),
        ("redis://h?username=alice", "a user without a password"),
        ("REDIS://h", "in lower case"),
        ("Unix:///run/redis.sock", "in lower case"),
    ],
)
@pytest.mark.parametrize("name", ["broker_url", "redis_url"])
def test_a_redis_url_that_no_connection_could_use_is_refused(tmp_path: Path, name: str, url: str, why: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=f"^AFTERMIND_{name.upper()}=.*{why}"):
        resolve(_settings(tmp_path, **{name: url}), url="inmemory")


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:p@h:6380/1?socket_timeout=2&health_check_interval=30&protocol=2&client_name=a&max_connections=9",
        f"rediss://h/?ssl_cert_reqs=none&ssl_check_hostname=false&ssl_ca_certs={certifi.where()}&ssl_ciphers=HIGH",
        "unix:///run/redis.sock?db=3",
        "redis+socket:///run/redis.sock?virtual_host=3",
    ],
)
@pytest.mark.parametrize("name", ["broker_url", "redis_url"])
def test_a_redis_url_may_have_options(tmp_path: Path, name: str, url: str) -> None:
    resolve(_settings(tmp_path, **{name: url}), url="inmemory")


CUT = [
    "redis://:hunter2/secret@h:6379/0",
    "redis://:hunter2#secret@h:6379/0",
    "redis://:hunter2?secret@h:6379/0",
    "redis://u:pw@h:hunter2/secret@h:6379/0",
    "redis://:a[hunter2]b@h:6379/0",
    "redis://:hunter2\u2100@h:6379/0",
    "rediss://:hunter2/secret@h:6379/0",
    "sentinel://:hunter2/secret@s1/a",
    "sentinel://:6379,hunter2/secret@s1/a",
]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *(({"redis_url": url, "broker_url": "redis://h"}, "AFTERMIND_REDIS_URL") for url in CUT),
        *(({"broker_url": url, "redis_url": "redis://h"}, "AFTERMIND_BROKER_URL") for url in CUT),
        ({"redis_url": "redis+cluster://:hunter2/secret@c1", "broker_url": "redis://h"}, "AFTERMIND_REDIS_URL"),
        ({"redis_url": "redis://h", "broker_url": "amqp://u:hunter2/w@h"}, "AFTERMIND_BROKER_URL"),
        ({"redis_url": "redis://h", "broker_url": "amqp://u:5672/hunter2@h"}, "AFTERMIND_BROKER_URL"),
        ({"redis_url": "redis://h", "replica_urls": ("postgresql://u:hunter2/x@h/db",)}, "AFTERMIND_REPLICA_URLS"),
        ({"redis_url": "redis://h", "database_url": "postgresql://u:hunter2/x@h/db"}, "AFTERMIND_DATABASE_URL"),
        ({"redis_url": "redis://h", "database_url": "postgresql://u:5432/hunter2@h/db"}, "AFTERMIND_DATABASE_URL"),
    ],
)
def test_a_password_that_cuts_its_url_is_not_in_the_error(
    tmp_path: Path,
    given: dict[str, Any],
    name: str,  # Any: values of settings
) -> None:
    with pytest.raises(errors.InvalidSettings, match=f"^{name}=.*percent-encode .*`/` is %2F") as refused:
        resolve(_settings(tmp_path, **{"database_url": POSTGRES, **given}))

    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:secret@h/0?password=secret&foo=s3",
        "redis://h/0?PASSWORD=secret&foo=s3",
        "rediss://h/0?ssl_password=secret&foo=s3",
        "sentinel://h/a?sentinel_password=secret&foo=s3",
        "kafka://h?sasl_password=secret",
    ],
)
def test_options_for_passwords_are_not_in_the_error(tmp_path: Path, url: str) -> None:
    for name in ("redis_url", "broker_url"):
        with pytest.raises(errors.InvalidSettings, match=f"^AFTERMIND_{name.upper()}=.*=…") as refused:
            resolve(_settings(tmp_path, **{name: url}), url="inmemory")
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h?password=a&bsecret=1",
        "redis://h?password=a&ssl_cert_reqs=secret",
        "redis://u:secret;x://more@h?foo=1",
        "redis://u:a;redis://secret@h?foo=1",
        "redis://:secret",
        "redis://u:secret",
        "redis://u:se/secret",
        "redis://u:p@h:secret/x@h",
        "rediss://h1:6379,u:secret",
        "amqp://u:secret",
        "amqp://u:secret;amqp://u:p@h",
    ],
)
@pytest.mark.parametrize("name", ["redis_url", "broker_url"])
def test_a_password_that_seems_to_be_something_else_is_not_in_the_error(tmp_path: Path, name: str, url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=f"^AFTERMIND_{name.upper()}=") as refused:
        resolve(_settings(tmp_path, **{name: url}), url="inmemory")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["postgresql://u:secret", "postgresql://u:secret/db", "postgresql://h:1,u:secret"])
def test_a_password_without_a_host_is_not_in_the_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"^url='postgresql://…': .*not a port; an `@` ends") as refused:
        resolve(_settings(tmp_path), url=url, broker=REDIS)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["redis://h/0?client_name=a@b&foo=3", "redis://h/0?foo=3&client_name=a@b", "sentinel://h/a@b?foo=3"]
)
def test_an_at_sign_that_is_of_no_password_hides_no_reason(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="unknown option 'foo'"):
        resolve(_settings(tmp_path), url=POSTGRES, redis=url)


@pytest.mark.parametrize("broker", ["amqp://h/v@host", "sentinel://h1,h2/my@svc"])
def test_an_at_sign_in_the_path_is_accepted_where_there_can_be_no_password(tmp_path: Path, broker: str) -> None:
    found = resolve(_settings(tmp_path), url="postgresql://h/my@db", redis=REDIS, broker=broker)

    assert (found.store, found.broker) == ("postgresql://h/my@db", broker)


@pytest.mark.parametrize("url", ["postgresql://h:5432/my@db", "postgresql://us/er:secret@h/db"])
def test_an_at_sign_in_the_path_is_percent_encoded_where_there_can_be_a_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="`@` is %40"):
        resolve(_settings(tmp_path), url=url, redis=REDIS)

    resolve(_settings(tmp_path), url="postgresql://h:5432/my%40db", redis=REDIS)


def test_a_memory_checks_the_tls_options_of_its_urls_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def count() -> ssl.SSLContext:
        made.append(create())
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", count)
    options = "?ssl_ciphers=HIGH:!SHA1"  # of no other test

    Memory(POSTGRES, redis=f"rediss://h/0{options}", broker=f"rediss://h/1{options}", settings=_settings(tmp_path))

    assert len(made) == 1


@pytest.mark.parametrize(
    "url", ["mongodb://h:x/?password=secret", "mongodb://u:se/secret@h", "qdrant://secret/x@h", "mysql://u:secret/x@h"]
)
def test_a_store_that_cannot_be_read_is_refused_without_the_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.InvalidSettings) as refused:
        Memory(url, settings=_settings(tmp_path))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("redis://h:6379/0?client_name=a@b", {}),
        ("postgresql://db/a?user=u@x&password=p@ss", {"broker": REDIS}),
        ("postgresql://u:p%2F%40@db/a", {"broker": REDIS}),
    ],
)
def test_an_at_sign_in_an_option_or_encoded_is_no_cut(tmp_path: Path, url: str, option: dict[str, str]) -> None:
    if option:
        assert resolve(_settings(tmp_path), url=url, **option).store == url
    else:
        assert resolve(_settings(tmp_path), url=POSTGRES, redis=url).redis == url


@pytest.mark.parametrize("url", ["AMQP://u:secret@q", "amqp://u:secret@q;AMQP://u:secret@r"])
def test_a_scheme_in_upper_case_is_refused_by_the_name_of_the_setting(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"^AFTERMIND_BROKER_URL=.*amqp://, in lower case") as refused:
        resolve(_settings(tmp_path, database_url=POSTGRES, broker_url=url, redis_url=REDIS))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("store", [None, POSTGRES])
def test_a_setting_that_lacks_another_one_is_named(tmp_path: Path, store: str | None) -> None:
    _stack_is_up(tmp_path)

    with pytest.raises(errors.InvalidSettings, match=r"^AFTERMIND_REDIS_URL='redis\+cluster://.*AFTERMIND_BROKER_URL"):
        resolve(_settings(tmp_path, database_url=store, redis_url=CLUSTER))
    with pytest.raises(errors.InvalidSettings, match=r"^redis='redis\+cluster://"):
        resolve(_settings(tmp_path, database_url=store), redis=CLUSTER)


def test_a_setting_with_a_malformed_replica_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"^AFTERMIND_REPLICA_URLS='mysql://h'"):
        resolve(_settings(tmp_path, database_url=POSTGRES, broker_url=REDIS, replica_urls=("mysql://h",)))


def test_a_setting_that_rabbitmq_needs_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"^AFTERMIND_REDIS_URL=None"):
        resolve(_settings(tmp_path, database_url=POSTGRES, broker_url=AMQP))


def test_a_malformed_redis_is_refused_by_its_name_with_what_is_valid(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"^redis='redis//127': .*redis\+cluster://") as refused:
        resolve(_settings(tmp_path), url=POSTGRES, redis="redis//127")
    assert "amqp" not in str(refused.value)


def test_a_malformed_store_is_refused_before_a_missing_broker(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"^AFTERMIND_DATABASE_URL='postgres:foo'"):
        resolve(_settings(tmp_path, database_url="postgres:foo"))
    with pytest.raises(errors.InvalidSettings, match=r"^url='postgres:foo'"):
        resolve(_settings(tmp_path), url="postgres:foo")


def test_without_anything_and_no_stack_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match="aftermind up"):
        resolve(_settings(tmp_path))


def test_postgres_without_a_redis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match="broker="):
        resolve(_settings(tmp_path), url=POSTGRES)


def test_a_store_of_one_process_takes_no_broker_and_ignores_the_settings_of_the_others(tmp_path: Path) -> None:
    settings = _settings(tmp_path, database_url=POSTGRES, broker_url=REDIS)

    assert resolve(settings, url="inmemory").is_in_process
    with pytest.raises(errors.InvalidSettings, match="without workers"):
        resolve(settings, url="inmemory", broker=REDIS)


@pytest.mark.parametrize(
    "given",
    [
        {"url": POSTGRES, "broker": "kafka://q"},
        {"url": POSTGRES, "broker": REDIS, "redis": "http://r"},
        {"url": POSTGRES, "broker": REDIS, "replicas": ["mysql://r"]},
        {"url": "postgresql://db:port/a", "broker": REDIS},
        {"url": 7},
    ],
)
def test_a_url_of_another_kind_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:  # Any: wrong on purpose
    with pytest.raises(errors.InvalidSettings):
        resolve(_settings(tmp_path), **given)


def test_no_error_shows_a_password(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings) as raised:
        resolve(_settings(tmp_path), url=POSTGRES, broker="kafka://u:secret@q")

    assert "secret" not in str(raised.value)


def test_an_endpoints_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text("{")

    with pytest.raises(errors.InvalidSettings, match=r"endpoints\.json"):
        resolve(_settings(tmp_path))


def test_child_processes_are_told_the_same(tmp_path: Path) -> None:
    found = resolve(_settings(tmp_path), url=POSTGRES, broker=AMQP, redis=REDIS, replicas=[POSTGRES])

    told = dict(found.environment())

    assert told["AFTERMIND_DATABASE_URL"] == POSTGRES
    assert json.loads(told["AFTERMIND_REPLICA_URLS"]) == [POSTGRES]
    assert (told["AFTERMIND_BROKER_URL"], told["AFTERMIND_REDIS_URL"]) == (AMQP, REDIS)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret@h1:5432,h2:5433/a",
        "postgresql://u:secret@[::1]:5432,h2/a",
        "postgresql://u:secret@/a?host=h1:5432,h2:5433",
        "postgresql://u:secret@/a?host=h1,h2&port=5432,5433",
        "postgresql://u:secret@/a?host=/run/postgresql",
    ],
)
def test_a_store_may_have_several_hosts(tmp_path: Path, url: str) -> None:
    assert resolve(_settings(tmp_path), url=url, broker=REDIS).store == url


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret@h1:5432,h2:many/a",
        "postgresql://u:secret@h1,,h3/a",
        "postgresql://u:secret@h1,:5433/a",
        "postgresql://u:secret@/a?host=h1,h2,h3&port=5432,5433",
        "postgresql://u:secret@h1:70000/a",
    ],
)
def test_hosts_that_cannot_be_read_are_refused_without_the_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.InvalidSettings) as refused:
        resolve(_settings(tmp_path), url=url, broker=REDIS)
    assert "secret" not in str(refused.value)


def test_the_url_of_a_replica_has_one_host(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match="one URL per replica"):
        resolve(_settings(tmp_path), url=POSTGRES, broker=REDIS, replicas=["postgresql://h1,h2/a"])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sentinel://:secret@s1,s2", "name the service"),
        ("sentinel://:secret@s1,s2/a/b", "name the service"),
        ("sentinel://:secret@s1:many/a", "not a port"),
        ("sentinel://:secret@,s2/a", "host is missing"),
        ("sentinel://:secret@s1/a?db=x", "not a number"),
        ("sentinel://:secret@s1/a?pool=3", "unknown option"),
        ("sentinel://alice@s1/a?sentinel_password=secret", "a user without a password"),
        ("sentinel://:secret@s1/a?sentinel_username=alice", "a user without a password"),
    ],
)
def test_sentinels_that_cannot_be_read_are_refused_without_the_password(tmp_path: Path, url: str, why: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=why) as refused:
        resolve(_settings(tmp_path), url=POSTGRES, broker=url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"broker": CLUSTER}, "cannot use a Redis Cluster as its broker"),
        ({"redis": CLUSTER}, "cannot use a Redis Cluster as its broker"),  # the broker would be the same
        ({"redis": f"{CLUSTER}/1", "broker": REDIS}, "no numbered databases"),
        ({"redis": "redis+cluster://:secret@c1:many", "broker": REDIS}, "not a port"),
        ({"redis": "redis+cluster://alice@c1", "broker": REDIS}, "a user without a password"),
    ],
)
def test_a_redis_cluster_needs_a_broker_of_its_own(tmp_path: Path, given: dict[str, str], why: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=why) as refused:
        resolve(_settings(tmp_path), url=POSTGRES, **given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("broker", ["amqp://u@h1//", "redis://h1/0", "sentinel://s1,s2/a"])
def test_a_redis_cluster_takes_turns_beside_any_other_broker(tmp_path: Path, broker: str) -> None:
    found = resolve(_settings(tmp_path), url=POSTGRES, redis=CLUSTER, broker=broker)

    assert (found.redis, found.broker) == (CLUSTER, broker)


def test_the_broker_may_be_the_nodes_of_a_rabbitmq_cluster(tmp_path: Path) -> None:
    nodes = "amqp://u:secret@h1:5672;amqps://u:secret@h2:5672//"

    assert resolve(_settings(tmp_path), url=POSTGRES, broker=nodes, redis=REDIS).broker == nodes


@pytest.mark.parametrize("second", ["redis://:se;secret@h2/0", "amqp://u:secret@h2:many//", ""])
def test_a_node_that_is_no_rabbitmq_is_refused_without_the_password(tmp_path: Path, second: str) -> None:
    with pytest.raises(errors.InvalidSettings) as refused:
        resolve(_settings(tmp_path), url=POSTGRES, broker=f"amqp://u:secret@h1//;{second}", redis=REDIS)
    assert "secret" not in str(refused.value)
