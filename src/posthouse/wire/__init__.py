"""Bytes to frames and back: what a protocol says, before anybody acts on it."""
