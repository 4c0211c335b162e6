"""What a process tells of itself: numbers for Prometheus, spans for OpenTelemetry, lines of a log."""
