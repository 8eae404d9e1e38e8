"""Traces: the lives of messages as spans for OpenTelemetry, told from the journal."""
