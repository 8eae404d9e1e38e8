"""The gateway's HTTP API, for programs in other languages."""
