"""A PATH on which something is missing."""

import shutil
from pathlib import Path


def without_setpriv(tmp_path: Path) -> Path:
    """A folder for PATH that holds `unshare` (where there is one) and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    if found := shutil.which("unshare"):
        (folder / "unshare").symlink_to(found)
    return folder
