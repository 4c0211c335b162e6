"""Flower's settings: `celery -A aftermind_workers.celery_app flower --conf=THIS_FILE`.

Settings in this file have precedence over the environment, so address, port and password are not here: they come from
FLOWER_ADDRESS, FLOWER_PORT and FLOWER_BASIC_AUTH (`user:password`).
"""

import os
from pathlib import Path

from aftermind_workers import flower_guard

natural_time = False  # a clock time can be compared with a log
max_tasks = 20_000  # bells and jobs that it remembers; the ledger has all jobs for good
inspect_timeout = 2_000.0  # ms
purge_offline_workers = 300  # seconds until a stopped worker leaves the list
task_runtime_metric_buckets = [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0]
tasks_columns = "name,uuid,state,kwargs,received,runtime,worker"

# Read-only. Otherwise a user with its password could stop workers and send tasks of any name. Use `aftermind replay`,
# the console, and the process manager for actions.
read_only = True

# What it has seen survives a restart. Its file holds ids, names and reasons, as its pages do.
persistent = True
db = str(Path(os.environ.get("AFTERMIND_STATE_DIR", ".aftermind")) / "flower")
os.umask(0o077)
flower_guard.require_login()
flower_guard.reconnect_promptly()
Path(db).parent.mkdir(parents=True, exist_ok=True)
flower_guard.check_state(Path(db))
enable_events = False  # workers send events by themselves, and take no orders
state_save_interval = 10_000  # ms; what a kill -9 may cost it
