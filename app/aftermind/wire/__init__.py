"""Formats shared by agents and workers; a change here is a compatibility change."""
