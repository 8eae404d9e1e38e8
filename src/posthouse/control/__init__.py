"""Operators' operations, and the socket through which they reach a running server."""
