"""Agent memory whose writes happen after the answer."""

__version__ = "0.1.0"
