"""Handlers of background jobs, one module per kind. Importing the package imports no handler."""
