"""Generated from protocol/*.proto; do not edit (a test compares)."""
