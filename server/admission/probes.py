"""The paths of probes and of monitoring."""

from __future__ import annotations

LIVENESS, READINESS = "/liveness", "/readiness"
PROBES = frozenset({LIVENESS, READINESS})
ANSWERED_ALWAYS = PROBES | {"/health", "/metrics"}  # also where no place is free for a connection
