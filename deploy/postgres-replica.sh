#!/bin/sh
# Copy the primary into an empty data folder, then follow it. A copy that was cut short is begun again.
set -eu
PGPASSWORD="$(cat "${SECRETS:-/run/secrets}/postgres_replicator_password")"
export PGPASSWORD
if [ ! -f "$PGDATA/standby.signal" ]; then
  rm -rf "${PGDATA:?}"/*
  until pg_basebackup --host "$PRIMARY_HOST" --port "$PRIMARY_PORT" --username aftermind_replicator_login \
      --pgdata "$PGDATA" --write-recovery-conf --slot replica --wal-method stream --checkpoint fast; do
    rm -rf "${PGDATA:?}"/*
    sleep 1
  done
  chmod 0700 "$PGDATA"
fi
exec postgres -c hot_standby=on -c hot_standby_feedback=on "$@"
