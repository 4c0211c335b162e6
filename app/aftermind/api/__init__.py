"""The objects behind `Memory`: connections, wiring and sub-APIs."""
