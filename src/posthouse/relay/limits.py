"""Limits: token buckets. In: the instant on a monotonic clock. Out: whether one more is allowed, or when."""

from __future__ import annotations

from collections.abc import Container


class Bucket:
    """So many a second, and ``burst`` at once after a quiet time."""

    __slots__ = ("_at", "_burst", "_rate_per_s", "_tokens")

    def __init__(self, rate_per_s: float, burst: float, at: float) -> None:
        assert rate_per_s > 0
        assert burst >= 1
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = burst
        self._at = at

    def take(self, at: float) -> float:
        """Take one: 0.0, or how many seconds to wait until there is one."""
        tokens = self._refilled(at)
        if tokens >= 1:
            self._tokens = tokens - 1
            return 0.0
        self._tokens = tokens
        return (1 - tokens) / self._rate_per_s

    def wait_s(self, at: float) -> float:
        """What ``take`` would answer, without taking."""
        self._tokens = tokens = self._refilled(at)
        return 0.0 if tokens >= 1 else (1 - tokens) / self._rate_per_s

    def spend(self, at: float) -> None:
        """Count one that was let in before it was known to count; what is not there is owed, up to a burst."""
        self._tokens = max(self._refilled(at) - 1, -self._burst)

    def is_full(self, at: float) -> bool:
        """Whether it is as if nothing had ever been taken."""
        self._tokens = self._refilled(at)
        return self._tokens >= self._burst

    def _refilled(self, at: float) -> float:
        tokens = min(self._tokens + (at - self._at) * self._rate_per_s, self._burst)
        self._at = at
        return tokens


class Buckets:
    """The buckets of many addresses. They outlive connections: to reconnect does not fill one."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        """A rate of 0: no limit."""
        self._rate_per_s = rate_per_s
        self._burst = max(burst, 1)
        self._by_address: dict[str, Bucket] = {}

    def of(self, address: str, at: float) -> Bucket | None:
        """The bucket of an address, made if there is none; None where there is no limit."""
        if self._rate_per_s <= 0:
            return None
        bucket = self._by_address.get(address)
        if bucket is None:
            bucket = self._by_address[address] = Bucket(self._rate_per_s, self._burst, at)
        return bucket

    def forget(self, at: float, kept: Container[str]) -> None:
        """Drop those that are full again, but for the addresses in ``kept``."""
        full = [a for a, bucket in self._by_address.items() if a not in kept and bucket.is_full(at)]
        for address in full:
            del self._by_address[address]

    def __len__(self) -> int:
        return len(self._by_address)
