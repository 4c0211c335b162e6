"""Closes gaps of Flower: pages without a login, and a state file that other users could replace.

Its state file is a pickle, which executes code when it is read.
"""

from pathlib import Path

from flower.views import monitor
from tornado import web

from aftermind import errors, private_files

WITHOUT_LOGIN = (monitor.Metrics, monitor.Healthcheck)


def require_login() -> None:
    """Ask for the password on `/metrics` and `/healthcheck` too."""
    for handler in WITHOUT_LOGIN:
        handler.get = web.authenticated(handler.get)


def check_state(stem: Path) -> None:
    """Raise `InvalidSettings` for a state file that this user cannot trust, and make it private."""
    for path in stem.parent.glob(f"{stem.name}*"):
        try:
            if not path.is_symlink():
                path.chmod(private_files.PRIVATE_MODE)
            private_files.read(path)
        except OSError as exc:
            why = f"{exc.strerror}. Flower loads it as a pickle: remove it if it is not yours."
            raise errors.InvalidSettings("AFTERMIND_STATE_DIR", str(path), why) from exc
