"""What is signed checks out with the specification's own example; what is sealed opens only where it belongs."""

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aftermind import Settings, errors
from aftermind.events.webhooks import signature, signing_secrets
from aftermind.events.webhooks.signing_secrets import Sealer

OLD, NEW = b"o" * 32, b"n" * 32


def test_a_signature_is_that_of_the_specification() -> None:
    body = b'{"event_type":"ping","data":{"success":true}}'

    told = signature.headers(["whsec_plJ3nmyCDGBKInavdOK15jsl"], "msg_loFOjxBNrRLzqYUf", 1731705121, body)

    assert told == {
        "webhook-id": "msg_loFOjxBNrRLzqYUf",
        "webhook-timestamp": "1731705121",
        "webhook-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
    }


def test_secrets_are_long_and_never_the_same() -> None:
    made = {signature.new_secret() for _ in range(100)}

    assert len(made) == 100
    assert all(len(base64.b64decode(each.removeprefix("whsec_"))) == 32 for each in made)


def test_what_is_sealed_opens_in_its_own_row_alone() -> None:
    sealed = Sealer([OLD]).seal("whsec_x", "acme/1")

    assert Sealer([OLD]).open(sealed, "acme/1") == "whsec_x"
    assert b"whsec" not in sealed
    for other in ("acme/2", "globex/1"):
        with pytest.raises(errors.InvalidSettings, match="AFTERMIND_WEBHOOK_KEY"):
            Sealer([OLD]).open(sealed, other)
    with pytest.raises(errors.InvalidSettings):
        Sealer([OLD]).open(sealed[:-1] + bytes([sealed[-1] ^ 1]), "acme/1")


def test_a_key_is_changed_by_putting_the_new_one_in_front() -> None:
    before, both, after = Sealer([OLD]), Sealer([NEW, OLD]), Sealer([NEW])

    assert both.open(before.seal("a", "row"), "row") == "a"
    assert after.open(both.seal("b", "row"), "row") == "b"
    with pytest.raises(errors.InvalidSettings):
        after.open(before.seal("a", "row"), "row")


def test_the_key_of_the_state_folder_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "state")

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: signing_secrets.keys(settings)(), range(8)))

    assert made == {signing_secrets.keys(settings).existing()}
    assert stat.S_IMODE((tmp_path / "state" / "webhook.key").stat().st_mode) == 0o600
    assert [each.name for each in (tmp_path / "state").iterdir()] == ["webhook.key"]


@pytest.mark.parametrize("key", ["short", base64.b64encode(b"x" * 31).decode(), "ü" * 44])
def test_a_key_that_is_none_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(errors.InvalidSettings) as refused:
        signing_secrets.opener(Settings(webhook_key=key))

    assert key not in str(refused.value)
