"""Metrics: a registry that every role adds to, and the HTTP endpoint that shows it."""

from .endpoint import MetricsServer
from .family import Asked, Family
from .registry import FAMILIES, Metrics

__all__ = ["FAMILIES", "Asked", "Family", "Metrics", "MetricsServer"]
