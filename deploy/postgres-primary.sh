#!/bin/sh
# Roles and database, once, as the superuser POSTGRES_USER: run by the Postgres image on an empty data folder, or by hand.
#
#   aftermind_migrator_login    owns the database; `aftermind migrate` alone
#   aftermind_agent_login       agents and the web service; row-level security binds it to one tenant at a time
#   aftermind_worker_login      workers, the reconciler, operators; jobs of every tenant, also for the web service
#   aftermind_replicator_login  the replica
#
# Passwords are files of SECRETS (see `aftermind secrets`), so that none is in an environment or a process list.
set -eu
export SECRETS="${SECRETS:-/run/secrets}"
psql -X -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\set migrator `cat "$SECRETS/postgres_migrator_password"`
\set agent `cat "$SECRETS/postgres_agent_password"`
\set worker `cat "$SECRETS/postgres_worker_password"`
\set replicator `cat "$SECRETS/postgres_replicator_password"`
CREATE ROLE aftermind_app NOLOGIN;
CREATE ROLE aftermind_relay NOLOGIN;
CREATE ROLE aftermind_migrator_login LOGIN PASSWORD :'migrator';
CREATE ROLE aftermind_agent_login LOGIN PASSWORD :'agent' IN ROLE aftermind_app;
CREATE ROLE aftermind_worker_login LOGIN PASSWORD :'worker' IN ROLE aftermind_relay;
CREATE ROLE aftermind_replicator_login LOGIN REPLICATION PASSWORD :'replicator';
-- How far a replica is.
GRANT pg_monitor TO aftermind_agent_login, aftermind_worker_login;
CREATE DATABASE aftermind OWNER aftermind_migrator_login;
REVOKE ALL ON DATABASE aftermind FROM PUBLIC;
GRANT CONNECT ON DATABASE aftermind TO aftermind_app, aftermind_relay;
\connect aftermind
CREATE EXTENSION IF NOT EXISTS vector;
SQL
if [ -n "${PGDATA:-}" ]; then
  echo "host replication aftermind_replicator_login all scram-sha-256" >> "$PGDATA/pg_hba.conf"
fi
