#!/bin/sh
# Copy the primary into an empty data folder, then follow it. A copy that was cut short is begun again.
# The slot is made first: a new primary, or one that was restored from a base backup, has none.
set -eu
PGPASSWORD="$(cat "${SECRETS:-/run/secrets}/postgres_replicator_password")"
export PGPASSWORD
primary="--host $PRIMARY_HOST --port $PRIMARY_PORT --username aftermind_replicator_login"
if [ ! -f "$PGDATA/standby.signal" ]; then
  rm -rf "${PGDATA:?}"/*
  # shellcheck disable=SC2086  # three options
  until pg_receivewal $primary --create-slot --if-not-exists --slot replica && pg_basebackup $primary \
      --pgdata "$PGDATA" --write-recovery-conf --slot replica --wal-method stream --checkpoint fast; do
    rm -rf "${PGDATA:?}"/*
    sleep 1
  done
  chmod 0700 "$PGDATA"
fi
exec postgres -c hot_standby=on -c hot_standby_feedback=on "$@"
