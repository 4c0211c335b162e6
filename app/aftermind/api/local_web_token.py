"""The local token: what signs the machine's own user in while no API key exists.

A request from 127.0.0.1 proves nothing: a reverse proxy on the same machine sends every client's requests from there,
and a common default configuration adds no header and rewrites Host to the upstream's address. A secret file that only
the operating system's user can read does prove it.
"""

import hmac
import secrets
from pathlib import Path

from aftermind import errors
from aftermind.db.encryption import keyfiles

FILE_NAME = "web.token"
PREFIX = "local_"  # apart from API keys, which begin with `am_`


def token_path(state_dir: Path) -> Path:
    """The file that holds the token."""
    return state_dir / FILE_NAME


def read_token(state_dir: Path) -> str:
    """The token; created at the first call, readable by its owner alone. Raises `InvalidSettings`."""
    path = token_path(state_dir)
    try:
        return keyfiles.read_or_create("web_token", path, lambda: PREFIX + secrets.token_urlsafe(32))
    except errors.InvalidSettings as exc:
        why = "the file cannot be read or created. Create an API key instead: `aftermind api-keys create NAME`."
        raise errors.InvalidSettings("state_dir", str(path), why) from exc


def is_token(shown: str, state_dir: Path) -> bool:
    """Whether the text is the token. Never creates it: a request has no effect on the disk."""
    if not shown.startswith(PREFIX) or not token_path(state_dir).exists():
        return False
    return hmac.compare_digest(shown.encode("utf-8", "replace"), read_token(state_dir).encode())
