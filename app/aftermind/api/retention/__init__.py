"""Retention policies and the archives they write."""
