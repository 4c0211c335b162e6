"""A damaged file of the state folder is reported and kept, and never taken for one that does not exist."""

from pathlib import Path

import pytest

from aftermind import errors
from aftermind.api.audit_anchors import FolderWitness
from aftermind.cli import doctor_checks
from aftermind.db.encryption.keyfiles import read_or_create
from aftermind.settings import Settings


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"\xff\xfe" * 20])
def test_a_damaged_key_file_is_refused_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.key"
    read_or_create("audit_key", path, lambda: "k" * 64)
    path.write_bytes(content)

    with pytest.raises(errors.InvalidSettings, match="damaged"):
        read_or_create("audit_key", path, lambda: "n" * 64)

    assert path.read_bytes() == content


async def test_a_damaged_audit_witness_is_kept_and_shown_by_doctor(tmp_path: Path) -> None:
    witness = FolderWitness(tmp_path / "audit")
    await witness.record_end("default", 3, b"mac of 3")
    [path] = (tmp_path / "audit").glob("*.json")
    path.write_bytes(path.read_bytes()[:-9])

    await witness.record_end("default", 4, b"mac of 4")

    [kept] = (tmp_path / "audit").glob("*.damaged")
    assert b'"seq":3' in kept.read_bytes()
    findings = await doctor_checks.spool(Settings(state_dir=tmp_path))
    assert [each.seen for each in findings if each.what == "audit witness"] == [f"damaged: {kept}"]
