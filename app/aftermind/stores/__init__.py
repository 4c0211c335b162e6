"""Backends for episodes, facts, blocks, summaries and profiles, behind one protocol."""
