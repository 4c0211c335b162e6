"""Memory in other frameworks: one module for each, which alone imports it, with an extra of its own."""
