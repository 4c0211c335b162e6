"""Encryption at rest: key files, the keyring of data keys, and the column cipher."""
