"""Observers of requests: Prometheus metrics, OpenTelemetry spans, the request log, and the trace context of callers."""
