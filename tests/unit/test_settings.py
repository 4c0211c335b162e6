"""A wrong setting is one line that names it, its value and the remedy; a misspelt one is not silently ignored."""

import logging
from pathlib import Path

import pytest

from aftermind import Settings, errors


@pytest.fixture(autouse=True)
def _without_dotenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("AFTERMIND_RECALL_TOKEN_BUDGET", "abc", "AFTERMIND_RECALL_TOKEN_BUDGET='abc': .*integer.*default \\(1000\\)"),
        ("AFTERMIND_ACCEPT", "post", "AFTERMIND_ACCEPT='post': .*'redis' or 'postgres'.*default \\(redis\\)"),
        ("AFTERMIND_LEASE_SECONDS", "-1", "AFTERMIND_LEASE_SECONDS='-1': .*greater than 0"),
        ("AFTERMIND_REPLICA_URLS", "postgres://me:secret@db", "AFTERMIND_REPLICA_URLS=.*not valid JSON"),
        ("AFTERMIND_REPLICA_URLS", '["x", 31337]', "AFTERMIND_REPLICA_URLS=.*valid string"),
        ("AFTERMIND_DATABASES", '{"eu": {"url": 31337}}', r"AFTERMIND_DATABASES='\*\*\*': eu: url: .*valid string"),
        (
            "AFTERMIND_NAMESPACE_BUDGETS",
            '{"acme": {"usd": 0.0005}}',
            r"AFTERMIND_NAMESPACE_BUDGETS='acme\.usd': .* tokens_per_day, usd_per_day\. Correct .*default \({}\)",
        ),
        (
            "AFTERMIND_NAMESPACE_BUDGETS",
            '{"acme": {"usd_a_day": 1}}',
            r"AFTERMIND_NAMESPACE_BUDGETS='acme\.usd_a_day': no such field\..* Did you mean usd_per_day\? Correct",
        ),
        (
            "AFTERMIND_NAMESPACE_BUDGETS",
            '{"acme": {"usd_per_day": -1}}',
            r"AFTERMIND_NAMESPACE_BUDGETS='acme\.usd_per_day': .*greater than or equal to 0, not -1\. Correct",
        ),
    ],
)
def test_a_bad_variable_is_one_line_with_name_value_and_remedy(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(errors.InvalidSettings, match=f"^{says}") as caught:
        Settings()

    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "31337" not in str(caught.value)
    assert caught.value.__suppress_context__, "a traceback shows no error of pydantic, which quotes all values"


def test_a_lease_that_ends_before_it_is_renewed_is_refused() -> None:
    with pytest.raises(errors.InvalidSettings, match=r"AFTERMIND_HEARTBEAT_SECONDS=10\.0: a lease of 10 s"):
        Settings(lease_seconds=10)

    assert Settings(lease_seconds=10, heartbeat_seconds=3).heartbeat_seconds == 3


def test_a_bad_or_misspelt_argument_is_refused() -> None:
    with pytest.raises(errors.InvalidSettings, match=r"^accept='post': .*Correct it, or leave it out for the default"):
        Settings(accept="post")
    with pytest.raises(errors.InvalidSettings, match=r"extracter='off': .*Did you mean extractor"):
        Settings(extracter="off")


@pytest.mark.parametrize(
    ("given", "hint"),
    [("AFTERMIND_HOME", " Did you mean AFTERMIND_STATE_DIR?"), ("AFTERMIND_PRODUCT", "")],  # the prefix is no likeness
)
def test_a_variable_is_suggested_only_for_a_like_name(
    given: str, hint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(given, "1")

    with caplog.at_level(logging.WARNING):
        Settings()

    assert [each.getMessage() for each in caplog.records] == [f"{given} is ignored: there is no such setting.{hint}"]


def test_an_argument_stands_above_its_variable_under_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the environment")

    for settings in (Settings(openai_api_key="given"), Settings(OPENAI_API_KEY="given")):
        assert settings.openai_api_key is not None
        assert settings.openai_api_key.get_secret_value() == "given"


def test_a_misspelt_variable_is_logged_once_with_the_right_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AFTERMIND_EXTRACTER", "off")
    monkeypatch.setenv("AFTERMIND_WEB_SERVICE_HOST", "10.0.0.1")  # Kubernetes sets it for a Service "aftermind-web"
    monkeypatch.setenv("AFTERMIND_EMBEDDER", "hash")
    (tmp_path / ".env").write_text("AFTERMIND_RECALL_TOKENS_BUDGET=9\nOTHER=1\n")

    with caplog.at_level(logging.WARNING):
        Settings()
        Settings()

    assert sorted(record.getMessage() for record in caplog.records) == [
        "AFTERMIND_EXTRACTER is ignored: there is no such setting. Did you mean AFTERMIND_EXTRACTOR?",
        "AFTERMIND_RECALL_TOKENS_BUDGET is ignored: there is no such setting. "
        "Did you mean AFTERMIND_RECALL_TOKEN_BUDGET?",
    ]


def test_null_as_the_json_of_a_setting_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERMIND_REPLICA_URLS", "null")
    monkeypatch.setenv("AFTERMIND_REPLAY_MODELS", "null")

    assert Settings().replica_urls == ()
    assert Settings().replay_models == Settings.model_fields["replay_models"].get_default(call_default_factory=True)


def test_options_of_pydantic_hold_for_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERMIND_NAMESPACE", "usual")
    monkeypatch.setenv("OTHER_NAMESPACE", "other")

    assert Settings().namespace == "usual"
    assert Settings(_env_prefix="OTHER_").namespace == "other"  # type: ignore[call-arg]
