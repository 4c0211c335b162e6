#!/bin/sh
# Copy the primary into an empty data folder, then follow it. A copy that was cut short is begun anew.
set -eu
export PGPASSWORD="$REPLICATION_PASSWORD"
if [ ! -f "$PGDATA/standby.signal" ]; then
  rm -rf "${PGDATA:?}"/*
  until pg_basebackup --host postgres --username replicator --pgdata "$PGDATA" --write-recovery-conf \
      --slot replica --wal-method stream --checkpoint fast; do
    rm -rf "${PGDATA:?}"/*
    sleep 1
  done
  chmod 0700 "$PGDATA"
fi
exec postgres -c hot_standby=on -c hot_standby_feedback=on
