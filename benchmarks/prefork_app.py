"""Our workers with children in the place of threads: `-P prefork` alone would not do, since a configured pool wins."""

from aftermind_workers.celery_app import app

app.conf.worker_pool = "prefork"
