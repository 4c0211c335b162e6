"""Turns into the store: all that they leave there, in one trip where that can be."""
