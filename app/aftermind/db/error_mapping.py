"""Maps errors of Postgres and its driver to Aftermind's errors."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import asyncpg
from asyncpg import exceptions as pg
from sqlalchemy import exc as sa

from aftermind import errors

HEAD = "0001_initial"  # the newest migration that this release reads and writes

# The server answers: it ended this one statement, because of what it holds or waits for. Nothing was committed.
_ABORTED = (
    pg.QueryCanceledError,  # statement_timeout, or an operator's pg_cancel_backend
    pg.LockNotAvailableError,
    pg.TransactionRollbackError,  # deadlock, serialisation
    pg.OutOfMemoryError,
    pg.ConfigurationLimitExceededError,  # temp_file_limit
)
# Outages: nothing was committed, and the same call may work later.
_PASSING = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a protocol error of the driver, and hosts of which none fits `target_session_attrs`
    pg.OperatorInterventionError,  # shutdown, crash of a neighbour
    pg.InsufficientResourcesError,  # disk full, too many connections
    pg.InvalidAuthorizationSpecificationError,
    pg.InvalidCatalogNameError,
    pg.ReadOnlySQLTransactionError,  # the primary was demoted under us
    pg.InvalidTransactionStateError,  # 25P03: idle for too long, a process that was frozen in the middle
    pg.ObjectNotInPrerequisiteStateError,  # WAL functions of a node that is in recovery
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)
# Hints for servers that answer, but not as they should.
_HINTS = {
    pg.InvalidAuthorizationSpecificationError: (
        "Correct the user or the password of its URL: `aftermind doctor` names the setting. A running process has the "
        "former password until it is restarted."
    ),
    pg.InvalidCatalogNameError: "Create the database, or correct its name in the URL, then run `aftermind migrate`.",
    pg.TooManyConnectionsError: (
        "Raise max_connections of Postgres, put pgbouncer in front of it, or run fewer processes: see "
        "docs/guides/sizing.md."
    ),
    pg.DiskFullError: "Free disk space on the server of Postgres.",
}
_DRIVER_ERRORS = (
    sa.DBAPIError,
    sa.TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
_CHANGED_TABLE = (
    "Postgres runs, but a migration changed a table after this statement was prepared. Repeat the call; jobs are "
    "retried automatically."
)
GENERATION_OUT_OF_RANGE = "AM001"  # raised by `aftermind.next_generation`
TENANT_MOVED = "AM002"  # raised by `aftermind.enter`
_OLD_SCHEMA = (
    pg.UndefinedTableError,
    pg.UndefinedColumnError,
    pg.UndefinedFunctionError,
    pg.InvalidSchemaNameError,
)
_NOT_TEXT = (pg.CharacterNotInRepertoireError, pg.UntranslatableCharacterError)
_NEEDS_OWNER = "It needs the owner of the tables: set AFTERMIND_MIGRATOR_URL."
_DIMENSIONS = re.compile(r"(?:expected|different \w+ dimensions) (\d+)(?: dimensions, not| and) (\d+)")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise an error of `aftermind.errors` where the database fails inside the block; `what` names it."""
    try:
        yield
    except errors.AftermindError:
        raise
    except _DRIVER_ERRORS as exc:
        _raise(what, exc)


def _raise(what: str, exc: Exception) -> NoReturn:
    if isinstance(exc, sa.TimeoutError):
        raise errors.StoreUnavailable(what, "every connection of the pool is in use") from exc
    cause = driver_error(exc)
    if isinstance(cause, pg.InsufficientPrivilegeError):
        why = short(cause)
        remedy = {"remedy": _NEEDS_OWNER} if "must be owner" in why else {}
        raise errors.NotAllowed(what, why, **remedy) from exc
    if getattr(cause, "sqlstate", None) == GENERATION_OUT_OF_RANGE:
        raise errors.GenerationOutOfRange(short(cause)) from exc
    if getattr(cause, "sqlstate", None) == TENANT_MOVED:
        raise _tenant_moved(cause) from exc
    if isinstance(cause, _OLD_SCHEMA):
        raise errors.SchemaOutdated(None, HEAD) from exc
    if isinstance(cause, pg.DataError) and (found := _DIMENSIONS.search(str(cause))):
        raise errors.DimensionMismatch(int(found[1]), int(found[2])) from exc
    if isinstance(cause, _NOT_TEXT) or (isinstance(cause, pg.DataError) and "surrogate" in str(cause)):
        why = "it holds a NUL character or a lone surrogate, which Postgres cannot keep; take it out."
        raise errors.InvalidQuery("text", "(left out)", why) from exc
    if isinstance(cause, pg.InvalidCachedStatementError):  # by now the driver has dropped it
        raise errors.StoreUnavailable(what, short(cause), _CHANGED_TABLE) from exc
    if isinstance(cause, _ABORTED):
        raise errors.StatementAborted(what, short(cause)) from exc
    if isinstance(cause, _PASSING) or (isinstance(exc, sa.DBAPIError) and exc.connection_invalidated):
        hint = next((text for kind, text in _HINTS.items() if isinstance(cause, kind)), None)
        raise errors.StoreUnavailable(what, short(cause), **({"hint": hint} if hint else {})) from exc
    raise exc


def _tenant_moved(cause: BaseException) -> errors.TenantMoved:
    """The tenant, the state and the other database are in the fields of the error: see `aftermind.enter`."""
    namespace, other = (str(getattr(cause, field, "")) for field in ("message", "detail"))
    is_served_there = getattr(cause, "hint", None) in ("moved", "incoming")
    return errors.TenantMoved(namespace, database=other if is_served_there else None, other=other)


def driver_error(exc: BaseException) -> BaseException:
    """The error of asyncpg inside SQLAlchemy's wrapper."""
    if isinstance(exc, sa.DBAPIError) and exc.orig is not None:
        return exc.orig.__cause__ or exc.orig
    return exc


def short(exc: BaseException) -> str:
    """The error in one line, without the statement and its parameters, which may contain user content."""
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, asyncpg.InternalClientError) and "another operation" in str(exc):
        return "the server ended the connection"  # asyncpg: "cannot switch to state 15"
    text = str(exc).strip().splitlines()
    return (text[0] if text else type(exc).__name__).rstrip(".")[:200]


def is_duplicate(exc: BaseException) -> bool:
    """Whether a statement failed because another transaction took a unique place first."""
    return isinstance(driver_error(exc), pg.UniqueViolationError)
