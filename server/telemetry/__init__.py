"""Traces: the caller's trace context, and one OpenTelemetry span for each request where that is switched on."""
