"""Telemetry of a process: Prometheus metrics, OpenTelemetry spans, logs."""
