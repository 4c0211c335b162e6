"""Memory in other frameworks: one module and one extra for each. Only that module imports the framework."""
