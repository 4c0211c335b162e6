"""Restricts the remote control of workers over the broker: they report, and accept no commands.

Flower asks for a heartbeat when it starts, which only sends an event.

Celery lets any client with access to its control channel shut workers down, revoke tasks and change pools; Flower's
Redis user may publish there, because its pages show workers' reports.
"""

from celery.worker.control import Panel

REPORTS = frozenset(
    {
        "active",
        "active_queues",
        "conf",
        "heartbeat",
        "hello",
        "ping",
        "registered",
        "reserved",
        "revoked",
        "scheduled",
        "stats",
    }
)


def allow_reports_only() -> None:
    """Remove every remote command of this process except the reports."""
    for name in [name for name in Panel.data if name not in REPORTS]:
        del Panel.data[name]
        Panel.meta.pop(name, None)
