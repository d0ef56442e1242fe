"""How long a test waits for what should happen at once, before it says that something hangs.

It is long because a busy machine may pause a test for many seconds, and costs nothing where nothing hangs.
"""

from __future__ import annotations

PATIENCE_S = 100.0  # less than pytest waits before it shows where a test hangs
PROCESS_S = 3 * PATIENCE_S  # for a process from its start to its end: it imports for seconds of processor time
