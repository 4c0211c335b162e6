"""Prompt-injection detection."""
