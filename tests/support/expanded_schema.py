"""A schema as some later release may have it: every table and view with a column more."""

from tests.support.servers import Database, psql

_RELATIONS = """
SELECT c.relname, c.relkind, replace(pg_get_viewdef(c.oid), chr(10), ' ') FROM pg_class c
WHERE c.relnamespace = 'aftermind'::regnamespace AND c.relkind IN ('r', 'p', 'v') ORDER BY 2, 1
"""


def widen(database: Database) -> set[str]:
    """Add a column `later` to everything in the schema, as migrations do: with readers and writers at work.

    What it was added to. The database is not reused for another test.
    """
    added = set()
    for line in psql(database.url, _RELATIONS).splitlines():
        name, kind, definition = line.split("|", 2)
        if kind == "v":
            selected, rest = definition.split(" FROM ", 1)
            psql(database.url, f"CREATE OR REPLACE VIEW aftermind.{name} AS {selected}, later FROM {rest}")
        else:
            psql(database.url, f"ALTER TABLE aftermind.{name} ADD COLUMN later text")
        added.add(name)
    return added
