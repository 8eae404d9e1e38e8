"""Handlers: a Python function, an HTTP endpoint, a command."""
