"""Figures about Aftermind, measured on this machine; README.md says how to read them."""
