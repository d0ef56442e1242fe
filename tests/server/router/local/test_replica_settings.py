from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.router.local.replica_settings import (
    VISIBLE_GPUS,
    check_shared,
    environment_of,
    gpu_of_each,
    settings_of_replica,
    threads_of_each,
)
from server.startup.settings import ServerSettings, SettingsError
from tests.engine.backends.native.nodes.machines import write_machine

GIVEN = {
    "EAGRE_DATA_PARALLEL": "2",
    "EAGRE_MODEL": "a=one.gguf,b=two.gguf",
    "EAGRE_NUM_PAGES": "101",
    "EAGRE_MEMORY_UTILIZATION": "0.3",
    "EAGRE_NO_PREFIX_CACHING": "1",
    "EAGRE_STORE": "kept.sqlite",
    "EAGRE_API_KEY": "a-client-of-this-test",
    "EAGRE_FRONT_KEY": "a-secret-of-fronts-alone",
    "EAGRE_ALLOWED_ORIGINS": "https://a.example",
    "EAGRE_SSL_CERTFILE": "a.pem",
    "EAGRE_SSL_KEYFILE": "b.pem",
    "EAGRE_METRICS_PORT": "9000",
    "EAGRE_THREADS": "5",
    "EAGRE_CACHE": "elsewhere",
}


def test_a_replica_finds_its_share_in_its_environment() -> None:
    settings = ServerSettings.from_sources({}, GIVEN)
    of_replica = settings_of_replica(settings, 1, Path("/run/x"))
    environment = environment_of(of_replica, *threads_of_each([None], GIVEN), GIVEN)
    assert ServerSettings.from_sources({}, environment) == of_replica
    assert (environment["EAGRE_THREADS"], environment["EAGRE_CACHE"]) == ("5", "elsewhere")
    assert (of_replica.uds, of_replica.replica_name, of_replica.store) == ("/run/x/1.sock", "1", "kept.sqlite.1")
    assert (of_replica.engine.num_pages, of_replica.engine.memory_utilization) == (50, 0.15)
    assert not of_replica.engine.enable_prefix_caching
    assert of_replica.models == settings.models
    assert of_replica.api_keys == settings.api_keys
    assert (of_replica.allowed_origins, of_replica.ssl_certfile, of_replica.metrics_port) == ((), None, None)


def test_no_share_is_less_than_what_a_server_needs() -> None:
    settings = ServerSettings.from_sources({}, {"EAGRE_DATA_PARALLEL": "8", "EAGRE_NUM_PAGES": "5"})
    of_replica = settings_of_replica(settings, 0, Path("/run/x"))
    assert of_replica.engine.num_pages == 2
    assert threads_of_each([None] * 8, {"EAGRE_THREADS": "3"}) == [1] * 8


SMALL, LARGE = frozenset({0, 1}), frozenset(range(2, 8))  # memory nodes


@pytest.mark.parametrize(
    ("processors", "given", "expected"),
    [
        ([None, None, None], {}, [2, 2, 2]),
        ([SMALL, LARGE], {}, [2, 6]),
        ([SMALL, LARGE] * 2, {}, [1, 3, 1, 3]),
        ([SMALL, LARGE] * 3, {}, [1, 2] * 3),
        ([SMALL, LARGE], {"EAGRE_THREADS": "6"}, [3, 3]),
        ([None, None], {"EAGRE_THREADS": "none"}, [4, 4]),
    ],
)
def test_servers_divide_the_cores_of_their_memory_node(
    processors: list[frozenset[int] | None], given: dict[str, str], expected: list[int],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert threads_of_each(processors, given, tmp_path) == expected


@pytest.mark.parametrize(
    ("processors", "granted", "expected"),
    [
        ([None, None], "max 100000", [2, 2]),
        ([SMALL, LARGE], "max 100000", [1, 3]),
        ([SMALL, LARGE], "450000 100000", [1, 2]),
        ([None] * 4, "250000 100000", [1] * 4),
        ([None, None], "nonsense", [2, 2]),
    ],
)
def test_a_core_has_one_thread_and_a_container_no_more_than_it_is_granted(
    processors: list[frozenset[int] | None], granted: str, expected: list[int],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    pairs = {processor: f"{processor // 2 * 2}-{processor // 2 * 2 + 1}" for processor in range(8)}
    write_machine(tmp_path / "devices" / "system", {0: "0-7"}, pairs)
    (tmp_path / "fs" / "cgroup").mkdir(parents=True)
    (tmp_path / "fs" / "cgroup" / "cpu.max").write_text(granted + "\n")
    assert threads_of_each(processors, {}, tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("TENSOR_PARALLEL", "2"), ("KV_EVENTS", "tcp://*:5557"), ("PREFIX_CACHE_LISTEN", "127.0.0.1:9100")],
)
def test_what_several_servers_cannot_share_is_refused_by_name(name: str, value: str) -> None:
    pages = {"EAGRE_PREFIX_CACHE_DIR": "kept", "EAGRE_PREFIX_CACHE_KEY": "a-secret-of-page-servers"}
    given = pages if name.startswith("PREFIX") else {}
    settings = ServerSettings.from_sources({}, {"EAGRE_DATA_PARALLEL": "2", f"EAGRE_{name}": value, **given})
    with pytest.raises(SettingsError, match=name.lower()):
        check_shared(settings)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ["0", "1"]),
        ({VISIBLE_GPUS: "2, GPU-7f, 5"}, ["2", "GPU-7f"]),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ["0", "1"]),
        ({"JAX_PLATFORMS": "cpu"}, None),
        ({VISIBLE_GPUS: ""}, None),
        ({VISIBLE_GPUS: "-1"}, None),
    ],
)
def test_each_server_has_a_gpu_of_its_own(
    environment: dict[str, str], wanted: list[str] | None, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    assert gpu_of_each(2, environment, has_plugin=True, gpus=tmp_path) == wanted
    assert gpu_of_each(2, environment, has_plugin=False, gpus=tmp_path) is None
    assert gpu_of_each(2, {}, has_plugin=True, gpus=tmp_path / "no driver") is None


def test_too_few_gpus_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="data_parallel is 2 and this machine shows 1 GPUs"):
        gpu_of_each(2, {VISIBLE_GPUS: "0"}, has_plugin=True)
