"""The paths of the liveness and readiness probes."""

from __future__ import annotations

LIVENESS, READINESS = "/liveness", "/readiness"
PROBES = frozenset({LIVENESS, READINESS})
