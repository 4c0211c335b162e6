"""How jobs run: the Celery application, the bell's handler, leases, the reconciler. Importing the package starts nothing."""
