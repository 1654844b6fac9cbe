"""Limits of memory and processor time for a process that handles what strangers wrote."""

from __future__ import annotations

import resource


def limit_resources(*, memory_bytes: int, cpu_s: int) -> None:
    """Limit this process for good. memory_bytes: beyond what it has. Raises OSError."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    for which, most in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, now_bytes + memory_bytes),
    ):
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, hard))
