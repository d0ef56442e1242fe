"""One of several hosts, as a process that tests start: the leader prints what it computes, a line of JSON each.

`python -m tests.engine.multihost.host MODEL PORT NUM_HOSTS INDEX DEVICES`; the leader reads tasks from standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from engine.interface.config import TILE_SIZE, AdapterLimits, EngineConfig
from engine.interface.types import AdapterChoice, EngineBusy


def configuration(port: int, num_hosts: int, index: int, num_devices: int) -> EngineConfig:
    """That of one host; without other hosts of the model on as many devices of one process."""
    hosts = {
        "num_hosts": num_hosts, "host_index": index, "coordinator": f"127.0.0.1:{port}",
        "coordinator_key": "a-key-of-all-hosts",
    } if num_hosts > 1 else {}  # fmt: skip
    return EngineConfig(
        dtype="float32", tensor_parallel=num_devices, max_num_seqs=1, max_num_batched_tokens=TILE_SIZE, num_pages=46,
        page_size=4, max_model_len=176, adapters=AdapterLimits(2, 4), **hosts,
    )  # fmt: skip


class Alternating:
    """A grammar of even and odd tokens in turn."""

    ends_output = False

    def __init__(self) -> None:
        self._parity = 0

    def accept(self, token_id: int) -> None:
        assert token_id % 2 == self._parity
        self._parity = 1 - self._parity

    def fill_mask(self, words: np.ndarray) -> None:
        words[:] = 0xAAAAAAAA if self._parity else 0x55555555


def end(error: BaseException) -> None:
    sys.stderr.write(f"{error}\n")
    sys.stderr.flush()
    os._exit(1)


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def lead(path: Path, config: EngineConfig) -> None:
    """Does what each line of standard input asks for, and says what came of it."""
    from engine.client import EngineClient
    from sampling.host.params import SamplingParams

    client = EngineClient.load(path, config, lambda *step: None)
    client.start(asyncio.get_running_loop())
    say(ready=True, num_pages=client.stats().num_pages)
    adapter: AdapterChoice | None = None

    async def tokens(prompt: list[int], options: dict[str, Any]) -> list[int]:
        matcher = Alternating() if options.pop("alternates", False) else None
        found: list[int] = []
        chosen = adapter if options.pop("adapted", False) else None
        async for event in client.submit(prompt, SamplingParams(**options), matcher=matcher, adapter=chosen):
            if event.error:
                say(error=event.error)
                os._exit(1)
            if not found:
                say(begun=True)
            found += event.token_ids
        return found

    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        match asked.pop("do"):
            case "generate":
                streams = [tokens(prompt, dict(asked["options"])) for prompt in asked["prompts"]]
                say(tokens=await asyncio.gather(*streams))
            case "adapter":
                weights = client.read_adapter(Path(asked["path"]))
                await client.load_adapter(1, weights)
                adapter = AdapterChoice(1, weights.digest)
                say(loaded=True)
            case "sleep":
                await client.lifecycle.sleep()
                await client.lifecycle.wake()
                say(awake=True)
            case "refuse":
                refused = []
                for change in (client.lifecycle.sleep(drop_weights=True), client.lifecycle.update_weights(path)):
                    try:
                        await change
                    except EngineBusy as error:
                        refused.append(str(error))
                say(refused=refused)
    say(idle=client.stats().device_idle_fraction, compiles=client.stats().compiles_after_ready)
    client.shutdown()


def main() -> None:
    """At the interpreter's own exit JAX would wait for the other hosts."""
    model, *numbers = sys.argv[1:]
    config = configuration(*map(int, numbers))
    try:
        if config.host_index:
            from engine.client import EngineClient

            EngineClient.follow(Path(model), config, lambda *step: None, end)
        else:
            asyncio.run(lead(Path(model), config))
    except Exception as error:  # noqa: BLE001 - the test sees it
        end(error)
    os._exit(0)


if __name__ == "__main__":
    main()
