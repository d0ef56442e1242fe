"""Command-line flags of a server under attack."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chaos.attacks.operators import FRIEND
from benchmarks.chaos.target import ADMIN_KEY, KEY, MAX_BODY_BYTES
from engine.interface.config import TILE_SIZE

MAX_NUM_SEQS = 48
REFERENCE_KEY = "key-of-the-reference-streams"
TARGET_GAP_MS = 15  # about what twenty streams alone take for a step


def server_flags(folder: Path, num_pages: int) -> list[str]:
    """Flags of a server with everything small enough to run out."""
    keys = folder / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"{KEY} attackers\n{REFERENCE_KEY} reference\n", encoding="utf-8")
    return [
        "--api-key-file", str(keys), "--admin-key", ADMIN_KEY, "--allowed-origins", FRIEND,
        "--max-num-seqs", str(MAX_NUM_SEQS), "--num-pages", str(num_pages),
        "--max-model-len", "2048",
        # aiohttp closes a WebSocket whose client has not answered a ping after half the interval; a reference
        # stream on a busy machine must be in time.
        "--ping-interval", "8", "--write-timeout", "3", "--max-body-bytes", str(MAX_BODY_BYTES),
        # The least that so many requests allow, so that prompts lengthen the steps of the others as little as can be.
        "--max-num-queued-requests", "512", "--max-num-batched-tokens", str(MAX_NUM_SEQS + TILE_SIZE),
        "--target-gap", str(TARGET_GAP_MS),
        # The buffers of resumable streams are small, and are soon given up.
        "--resume-grace", "2", "--resume-max-bytes", str(4 << 20), "--resume-max-streams", "64",
        "--store", str(folder / "store.db"), "--store-bytes", str(16 << 20),
        "--store-file-bytes", str(16 << 20), "--max-file-bytes", str(4 << 20), "--max-batch-requests", "4",
    ]  # fmt: skip
