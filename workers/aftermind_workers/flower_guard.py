"""Closes gaps of Flower: pages without a login, a state file that other users could replace, and slow reconnects.

Its state file is a pickle, which executes code when it is read.
"""

import time
from pathlib import Path

from celery.events import EventReceiver
from flower import app as flower_app
from flower.events import Events
from flower.views import monitor
from tornado import web

from aftermind import errors, private_files
from aftermind.telemetry.logger import get_logger

log = get_logger(__name__)

WITHOUT_LOGIN = (monitor.Metrics, monitor.Healthcheck)
RECONNECT_SECONDS = 2.0


class ReconnectingEvents(Events):  # type: ignore[misc]  # Flower has no types
    """Flower's listener to events, with a fixed pause between its attempts to connect.

    Flower's own doubles the pause without an upper bound, so that it showed workers as offline for up to 128 seconds
    after the broker was back.
    """

    def run(self) -> None:
        """Listen until the process ends: it is a daemon thread."""
        while True:
            try:
                with self.capp.connection() as connection:
                    receiver = EventReceiver(connection, handlers={"*": self.on_event}, app=self.capp)
                    receiver.capture(limit=None, timeout=None, wakeup=True)
            except Exception as exc:  # as Flower: whatever the transport raises
                log.error("Flower receives no events", extra={"error": str(exc), "again_in": RECONNECT_SECONDS})
            time.sleep(RECONNECT_SECONDS)


def reconnect_promptly() -> None:
    """Let Flower use `ReconnectingEvents`."""
    flower_app.Events = ReconnectingEvents


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
