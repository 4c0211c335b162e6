"""Row-level security: the roles, and a policy on every table with rows of a tenant.

Applied after every migration, so that a new table cannot be missed. Row-level security is FORCEd, so it applies to the
owner of the tables too; the owner's additional rights are a policy like the others.

- `aftermind_app`: an agent's process. Reads the tenant of its transaction, and nothing without one.
- `aftermind_relay`: workers and operators' commands. Reads the ledger and stored events across tenants (it has to claim
jobs of all); memory only like the app, tenant by tenant.
- the owner: `aftermind migrate` and backups.
"""

from typing import Literal

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from aftermind import errors
from aftermind.db.tables import SCHEMA, VERSION_TABLE

APP, RELAY = "aftermind_app", "aftermind_relay"

# Tables about work, not about memory: the relay reads and writes them across tenants.
LEDGER = (
    "jobs",
    "job_attempts",
    "job_followups",
    "job_pauses",
    "hold_history",
    "recall_counts",
    "spending",
    "events",
    "event_counters",
    "undelivered_watermarks",
    "webhooks",
    "webhook_deliveries",
)
# Of no tenant: plans name jobs of many, the history of metrics adds all of them up.
OPERATORS = ("replay_plans", "replay_items", "metric_history")
# Ids, index progress, retention policies, lengths of trails, undelivered erasures, encrypted keys: read by the
# reconciler and operators.
READ_BY_RELAY = ("users", "retention_policies", "audit_heads", "tombstones", "tenant_moves", "data_keys")
ALL = "SELECT, INSERT, UPDATE, DELETE"
# Other rights than all four. What is in the trail stays as it is; the relay alone may take away its old end.
RIGHTS = {
    "audit_log": {APP: "SELECT, INSERT", RELAY: "SELECT, INSERT, DELETE"},
    "data_keys": {APP: "SELECT", RELAY: ALL},
    "audit_heads": {APP: "SELECT, INSERT, UPDATE", RELAY: "SELECT, INSERT, UPDATE"},
    "tenant_moves": {APP: "SELECT", RELAY: "SELECT"},
}
YOUNGEST_PRUNED = "30 days"  # of the trail: a relay login cannot remove its entries of today
SHARED = ("meta", VERSION_TABLE)

# Unset, or set to nothing, is NULL, which equals nothing.
TENANT = "NULLIF(current_setting('aftermind.namespace', true), '')"

# A tenant that a statement sets itself, for its own duration: the query is joined laterally with the function that sets
# it, so that no row is read before. Rows of another tenant are never visible: until then no row is.
# A read, `asked`, that names its tenant by itself (`:tenant`; None: that of the transaction): `PgTransaction.alone`.
ENTERING = """
    SELECT answer.* FROM aftermind.enter(
        coalesce(CAST(:tenant AS text), current_setting('aftermind.namespace', true), ''), false
    ) AS tenant(entered)
    CROSS JOIN LATERAL (SELECT asked.* FROM ({asked}) AS asked WHERE tenant.entered IS NOT NULL OFFSET 0) AS answer
"""

_ROLES = text("SELECT rolname FROM pg_roles WHERE rolname IN (:app, :relay)")
_TABLES = text(
    """
    SELECT c.relname AS name, c.relrowsecurity AND c.relforcerowsecurity AS is_forced,
           EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'namespace') AS has_tenant,
           ARRAY(SELECT polname FROM pg_policy p WHERE p.polrelid = c.oid) AS policies
    FROM pg_class c WHERE c.relnamespace = CAST(:schema AS regnamespace) AND c.relkind IN ('r', 'p') ORDER BY 1
    """
)
STANDING = """
    SELECT r.rolname AS role, r.rolsuper OR r.rolbypassrls AS bypasses,
           coalesce((SELECT pg_has_role(c.relowner, 'MEMBER') FROM pg_class c
                     JOIN pg_namespace n ON n.oid = c.relnamespace
                     WHERE n.nspname = 'aftermind' AND c.relname = 'meta'), false) AS owns
    FROM pg_roles r WHERE r.rolname = current_user
"""


async def secure(connection: AsyncConnection) -> None:
    """Make the roles, and give each table its policies and rights; safe to repeat, and then it locks nothing."""
    await _make_roles(connection)
    await connection.execute(text(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {APP}, {RELAY}"))
    for table in (await connection.execute(_TABLES, {"schema": SCHEMA})).all():
        name = f"{SCHEMA}.{table.name}"
        if table.name in SHARED:
            await connection.execute(text(f"GRANT SELECT ON {name} TO {APP}, {RELAY}"))
            continue
        if not table.is_forced:
            await connection.execute(text(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"))
        for role, rights in RIGHTS.get(table.name, {APP: ALL, RELAY: ALL}).items():
            await connection.execute(text(f"GRANT {rights} ON {name} TO {role}"))
        for policy, statement in _policies(table.name, has_tenant=table.has_tenant).items():
            if policy not in table.policies:
                await connection.execute(text(f"CREATE POLICY {policy} ON {name} {statement}"))
    for function in ("adopt_embedder", "expired_namespaces"):
        await connection.execute(text(f"GRANT EXECUTE ON FUNCTION {SCHEMA}.{function} TO {RELAY}"))
    await connection.execute(text(f"GRANT SELECT ON SEQUENCE {SCHEMA}.generation TO {APP}, {RELAY}"))
    for view in ("searchable_episodes", "searchable_facts"):
        await connection.execute(text(f"GRANT SELECT ON {SCHEMA}.{view} TO {APP}, {RELAY}"))


def _policies(table: str, *, has_tenant: bool) -> dict[str, str]:
    found = {"maintenance": "TO CURRENT_USER USING (true) WITH CHECK (true)"}
    if has_tenant:
        found["tenant"] = f"USING (namespace = {TENANT}) WITH CHECK (namespace = {TENANT})"
    if table in LEDGER or table in OPERATORS:
        found["relay"] = f"TO {RELAY} USING (true) WITH CHECK (true)"
    if table in READ_BY_RELAY:
        found["relay"] = f"FOR SELECT TO {RELAY} USING (true)"
    if table == "audit_log":
        old, now = f"at < now() - interval '{YOUNGEST_PRUNED}'", "at BETWEEN now() - interval '1 h' AND now() + '1 h'"
        found["old_end"] = f"AS RESTRICTIVE FOR DELETE TO {RELAY} USING ({old})"
        found["of_now"] = f"AS RESTRICTIVE FOR INSERT TO {APP}, {RELAY} WITH CHECK ({now})"
    return found


async def _make_roles(connection: AsyncConnection) -> None:
    there = {row.rolname for row in (await connection.execute(_ROLES, {"app": APP, "relay": RELAY})).all()}
    for role in (APP, RELAY):
        if role in there:
            continue
        if not await connection.scalar(
            text("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
        ):
            raise errors.RoleMissing(role)
        await connection.execute(text(f"CREATE ROLE {role} NOLOGIN"))


async def refuse_unbound(connection: "asyncpg.Connection[asyncpg.Record]", what: str) -> None:
    """Raise `UnboundRole` where row-level security does not bind this connection's role, or it could lift it."""
    found = await connection.fetchrow(STANDING)
    if found is None:
        return
    why: Literal["it bypasses row-level security", "it owns the tables"] | None = (
        "it bypasses row-level security" if found["bypasses"] else "it owns the tables" if found["owns"] else None
    )
    if why is not None:
        raise errors.UnboundRole(found["role"], what, why)
