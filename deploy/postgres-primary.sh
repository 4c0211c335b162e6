#!/bin/sh
# Run once by the Postgres image, on an empty data folder: the role that the replica copies with, and its slot.
set -eu
psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" \
  -v password="$REPLICATION_PASSWORD" <<'SQL'
CREATE ROLE replicator REPLICATION LOGIN PASSWORD :'password';
SELECT pg_create_physical_replication_slot('replica');
CREATE EXTENSION IF NOT EXISTS vector;
SQL
echo "host replication replicator all scram-sha-256" >> "$PGDATA/pg_hba.conf"
