"""A step of background work for several tenants or plans, isolated: a failure for one does not stop the others."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from aftermind import errors
from aftermind.telemetry.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")


async def run_each(step: str, names: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """What `work` returned for each name; one that fails is logged and left out, to be tried in the next round.

    An outage concerns all: it raises `Unavailable`.
    """
    results: list[R] = []
    for name in names:
        try:
            results.append(await work(name))
        except (errors.StatementAborted, errors.KeyMissing) as exc:
            log.warning("step failed", extra={"step": step, "of": _label(name), "error": str(exc)})
        except errors.Unavailable:
            raise
        except Exception:  # the edge of a step of one tenant
            log.exception("step failed", extra={"step": step, "of": _label(name)})
    return results


def _label(name: object) -> str:
    return str(getattr(name, "namespace", name))
