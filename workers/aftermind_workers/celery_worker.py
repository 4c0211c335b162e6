"""Runs a Celery worker: `python -m aftermind_workers.celery_worker -Q memory.store`, with options of `celery worker`.

The command `celery` imports all subcommands and plugins first: Flower, Tornado, a shell. Without them a worker starts
with 0.6 s less CPU time (of 3.9) and needs 11 MB less memory.
"""

import socket
import sys
from collections.abc import Sequence

from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.worker import worker

MAX_WORKERS_OF_A_NAME = 100
_held: list[socket.socket] = []  # until the process ends


def run(app: Celery, argv: Sequence[str]) -> None:
    """Run a worker until it is stopped, then exit. `argv` are options of `celery worker`."""
    app.set_current()
    given = list(argv)
    if "-n" in given:
        place = given.index("-n") + 1
        given[place] = _free_name(given[place])
    worker.main(given, prog_name="worker", obj=CLIContext(app=app, workdir=None, no_color=False, quiet=True))


def _free_name(wanted: str) -> str:
    """The first of store@host, store-2@host, … that no running worker of this host has: Flower shows nodes of one name
    as one.

    A name is held by a socket without a file, which ends with the process, however that ends. Only Linux has them.
    """
    node, at, host = wanted.partition("@")
    for number in range(1, MAX_WORKERS_OF_A_NAME + 1):
        name = node if number == 1 else f"{node}-{number}"
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0aftermind-worker-{name}")
        except OSError:
            holder.close()
            if sys.platform != "linux":
                break
            continue
        _held.append(holder)
        return f"{name}{at}{host}"
    return wanted


if __name__ == "__main__":
    from aftermind_workers.celery_app import app

    run(app, sys.argv[1:])
