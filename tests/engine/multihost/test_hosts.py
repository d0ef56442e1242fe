"""One model over processes of this machine: the tokens are those of one process, and a lost process is noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.server_process import free_port
from tests.engine.adapters.peft_adapters import ALL, merged, pairs_of, write_adapter
from tests.engine.parallel.on_four_devices import golden_of, write_folder
from tests.patience import PATIENCE_S
from tests.thoroughness import IS_FULL

ROOT = Path(__file__).parents[3]
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


class Hosts:
    """Processes that compute one model; the first is asked."""

    def __init__(self, folder: Path, num_hosts: int, num_devices: int) -> None:
        share = num_devices // num_hosts
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={share} {QUICK_TO_COMPILE}"
        port = free_port() - 1
        host = [sys.executable, "-m", "tests.engine.multihost.host", str(folder)]
        self.processes = [
            subprocess.Popen(
                [*host, *map(str, (port, num_hosts, index, num_devices))],
                env={**os.environ, "XLA_FLAGS": flags}, cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for index in range(num_hosts)
        ]  # fmt: skip

    def say(self, **what: Any) -> None:
        stdin = self.processes[0].stdin
        assert stdin is not None
        stdin.write(json.dumps(what) + "\n")
        stdin.flush()

    def hear(self) -> dict[str, Any]:
        stdout = self.processes[0].stdout
        assert stdout is not None
        line = stdout.readline()
        while line.startswith("[Gloo]"):  # it tells about its connections there
            line = stdout.readline()
        assert line, self.errors()
        heard: dict[str, Any] = json.loads(line)
        return heard

    def ask(self, **what: Any) -> dict[str, Any]:
        self.say(**what)
        return self.hear()

    def errors(self) -> list[str]:
        for process in self.processes:
            process.kill()
        return [process.communicate()[1][-2000:] for process in self.processes]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def generate(self, prompts: list[list[int]], **options: Any) -> list[list[int]]:
        """The tokens of some requests that run together."""
        self.say(do="generate", prompts=prompts, options=options)
        while "tokens" not in (heard := self.hear()):
            assert heard == {"begun": True}, heard
        found: list[list[int]] = heard["tokens"]
        return found


def folder_of(golden: dict[str, Any], folder: Path, *, is_for_four: bool = False) -> Path:
    """The golden's model; for four hosts to share it, with as many heads of keys as of queries."""
    config, shapes = golden["config"], golden["shapes"]
    if is_for_four:
        config = {**config, "num_key_value_heads": config["num_attention_heads"]}
        shapes = {name: shapes[name.replace("k_proj", "q_proj").replace("v_proj", "q_proj")] for name in shapes}
    return write_folder(folder / "llama", config, shapes, golden["seed"])


Start = Callable[[Path, int, int], Hosts]  # a model's folder, hosts, devices in all


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts hosts, and ends them with the test."""
    with ExitStack() as running:

        def start(folder: Path, num_hosts: int, num_devices: int) -> Hosts:
            hosts = Hosts(folder, num_hosts, num_devices)
            running.callback(hosts.close)
            return hosts

        yield start


def options_of_requests() -> list[dict[str, Any]]:
    return [
        {"temperature": 1.0, "seed": 5, "top_p": 0.9},
        {"temperature": 1.0, "seed": 6, "presence_penalty": 0.5, "logprobs": 3, "prompt_logprobs": 1},
        {"temperature": 1.0, "seed": 7, "alternates": True},
    ]


@pytest.mark.skipif(not IS_FULL, reason="two processes compile an engine each; EAGRE_FULL=1 runs it")
def test_hosts_give_the_right_tokens_until_one_of_them_is_killed(tmp_path: Path, start: Start) -> None:
    """Greedy, seeded, penalised, with a grammar, an adapter, after a sleep; then every stream ends with one error."""
    hosts = start(folder_of(golden_of("llama"), tmp_path), 2, 2)
    assert hosts.hear()["ready"]
    golden = golden_of("llama")["prompts"]
    prompts = [prompt["prompt_token_ids"] for prompt in golden]
    greedy = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 12}
    first = hosts.generate(prompts, **greedy)
    assert first == [prompt["output_token_ids"] for prompt in golden]
    for options in options_of_requests():
        once = hosts.generate(prompts[:2], max_tokens=12, **options)
        assert hosts.generate(prompts[:2], max_tokens=12, **options) == once
        if "alternates" in options:
            assert all(token % 2 == index % 2 for tokens in once for index, token in enumerate(tokens))
    model = tmp_path / "llama"
    pairs = pairs_of(model, ALL, 4, seed=7)
    adapter = write_adapter(tmp_path / "adapter", pairs, {"r": 4, "lora_alpha": 6})
    whole = start(merged(model, tmp_path / "merged", pairs, dict.fromkeys(ALL, 1.5)), 1, 2)
    assert whole.hear()["ready"]
    assert hosts.ask(do="adapter", path=str(adapter)) == {"loaded": True}
    adapted = hosts.generate(prompts, **greedy, adapted=True)
    assert adapted != first == hosts.generate(prompts, **greedy)
    assert hosts.ask(do="sleep") == {"awake": True}
    assert hosts.generate(prompts, **greedy) == first
    assert hosts.generate(prompts, **greedy, adapted=True) == adapted == whole.generate(prompts, **greedy)
    assert hosts.ask(do="refuse")["refused"] == [
        f"{what} is not possible while {len(hosts.processes)} hosts compute the model (num_hosts)"
        for what in ("a sleep that takes the weights from the devices", "a change of the weights")
    ]

    hosts.processes[-1].send_signal(signal.SIGSTOP)  # so that the streams cannot end before it is killed
    hosts.say(do="generate", prompts=prompts[:2], options=greedy)
    time.sleep(0.2)
    hosts.processes[-1].kill()
    killed = time.monotonic()
    heard = hosts.hear()
    assert time.monotonic() - killed < PATIENCE_S
    assert f"host {len(hosts.processes) - 1} of {len(hosts.processes)} is lost" in heard["error"]
    for process in hosts.processes:
        process.wait(PATIENCE_S)


@pytest.mark.skipif(not IS_FULL, reason="five more processes compile; EAGRE_FULL=1 runs it")
def test_four_hosts_give_the_tokens_of_one_process_and_end_with_their_leader(tmp_path: Path, start: Start) -> None:
    folder = folder_of(golden_of("llama"), tmp_path, is_for_four=True)
    hosts, alone = start(folder, 4, 4), start(folder, 1, 4)
    assert alone.hear() == hosts.hear()
    prompts = [prompt["prompt_token_ids"] for prompt in golden_of("llama")["prompts"]]
    for options in ({"temperature": 0.0, "ignore_eos": True}, *options_of_requests()):
        expected = alone.generate(prompts, max_tokens=12, **options)
        assert hosts.generate(prompts, max_tokens=12, **options) == expected
    hosts.processes[0].kill()
    for follower in hosts.processes[1:]:
        assert follower.wait(PATIENCE_S) != 0
