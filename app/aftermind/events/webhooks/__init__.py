"""Webhook delivery: the HTTP client, signatures, secrets and the SSRF guard."""
