"""A test's database for the next one: emptied, and thrown away if its schema is not as it was.

To empty one takes a tenth of what a copy of the template takes, on the primary and on its replica.
"""

from itertools import chain

# Whatever a test could change of a schema, as one figure; what changes by writing rows is left out. Of catalogs that no
# write of rows touches, who made the row stands for the row: a third of the time, and every test pays it.
_FINGERPRINT = """
SELECT sum(hashtextextended(line, 0))::text FROM (
  SELECT ROW(
      oid, relname, relnamespace, reltype, reloftype, relowner, relam, reltablespace, reltoastrelid, relhasindex,
      relisshared, relpersistence, relkind, relnatts, relchecks, relhasrules, relhastriggers, relhassubclass,
      relrowsecurity, relforcerowsecurity, relispopulated, relreplident, relispartition, relacl, reloptions,
      relpartbound
    )::text
    FROM pg_class WHERE relnamespace IN ('aftermind'::regnamespace, 'public'::regnamespace)
  UNION ALL SELECT concat_ws(' ', 'column', a.attrelid, a.attnum, a.xmin)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'aftermind'::regnamespace
  UNION ALL SELECT concat_ws(' ', 'constraint', oid, xmin) FROM pg_constraint
  UNION ALL SELECT concat_ws(' ', 'index', indexrelid, xmin) FROM pg_index WHERE indexrelid >= 16384
  UNION ALL SELECT concat_ws(' ', 'policy', oid, xmin) FROM pg_policy
  UNION ALL SELECT concat_ws(' ', 'trigger', oid, xmin) FROM pg_trigger
  UNION ALL SELECT concat_ws(' ', 'function', oid, xmin) FROM pg_proc WHERE oid >= 16384
  UNION ALL SELECT to_jsonb(x)::text FROM pg_namespace x
  UNION ALL SELECT to_jsonb(x)::text FROM pg_extension x
  UNION ALL SELECT to_jsonb(x)::text FROM pg_default_acl x
  UNION ALL SELECT (to_jsonb(x) - 'setdatabase')::text FROM pg_db_role_setting x
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS schema (line)"""

_TABLES = "SELECT oid::regclass FROM pg_class WHERE relkind = 'r' AND relnamespace = 'aftermind'::regnamespace"

# What a migrated database has of rows, and its fingerprint, beside it in a schema of their own.
REMEMBER = (
    "CREATE SCHEMA pristine",
    f"""DO $$ DECLARE named regclass; is_filled boolean; BEGIN
      FOR named IN {_TABLES} LOOP
        EXECUTE format('SELECT EXISTS (TABLE %s)', named) INTO is_filled;
        IF is_filled THEN
          EXECUTE format('CREATE TABLE pristine.%I AS TABLE %s', split_part(named::text, '.', 2), named);
        END IF;
      END LOOP; END $$""",
    "CREATE TABLE pristine.fingerprint (value text)",
    f"INSERT INTO pristine.fingerprint {_FINGERPRINT}",
)

DISCONNECT = """SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""

# A table whose file is empty has had no row.
# The last answers with "t" where the database is as it was, and with the position that a replica has to reach.
EMPTY = (
    DISCONNECT,
    f"""DO $$ DECLARE named regclass; BEGIN
      SET LOCAL session_replication_role = replica;
      EXECUTE (SELECT format('TRUNCATE %s RESTART IDENTITY CASCADE', string_agg(oid::regclass::text, ', '))
        FROM ({_TABLES} AND pg_relation_size(oid) > 0) filled (oid));
      FOR named IN SELECT oid::regclass FROM pg_class
          WHERE relkind = 'r' AND relnamespace = 'pristine'::regnamespace AND relname <> 'fingerprint' LOOP
        EXECUTE format('INSERT INTO aftermind.%I TABLE %s', split_part(named::text, '.', 2), named);
      END LOOP; END $$""",
    f"SELECT (SELECT value FROM pristine.fingerprint) = ({_FINGERPRINT})",
    "SELECT pg_current_wal_flush_lsn()",
)

# On a replica, which has to reach that position.
FOLLOW = """DO $$ BEGIN FOR tries IN 1..3000 LOOP
      EXIT WHEN pg_last_wal_replay_lsn() >= '{lsn}'; PERFORM pg_sleep(0.01); END LOOP;
      ASSERT pg_last_wal_replay_lsn() >= '{lsn}', 'the replica does not follow'; END $$"""


def answer_of(told: str) -> tuple[bool, str]:
    """Whether an emptied database is as it was, and where the log of writes stood then."""
    lines = list(chain.from_iterable(line.split() for line in told.splitlines()))
    return lines[-2] == "t", lines[-1]
