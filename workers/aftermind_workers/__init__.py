"""How jobs run: Celery application, bells, leases, reconciler. Importing the package starts nothing."""
