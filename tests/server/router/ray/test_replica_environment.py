"""Which settings reach the server of a replica, and how."""

from __future__ import annotations

import argparse

import pytest

from server.router.ray.replica_environment import replica_environment, share_of_memory
from server.startup.settings import ServerSettings, SettingsError


def environment_of(*arguments: str, cpus: float = 1, **environment: str) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    ServerSettings.add_flags(parser)
    return replica_environment(vars(parser.parse_args(arguments)), environment, cpus)


def test_the_replicas_have_the_settings_of_the_command() -> None:
    given = environment_of(
        *("--model", "a=x.gguf", "--model", "b=y.gguf", "--max-num-seqs", "4", "--no-prefix-caching"),
        EAGRE_MAX_NUM_SEQS="9",
        EAGRE_SEED="3",
        HOME="/somewhere",
    )
    assert "HOME" not in given
    settings = ServerSettings.from_sources({}, given)
    assert settings.models == ("a=x.gguf", "b=y.gguf")
    assert (settings.engine.max_num_seqs, settings.engine.seed) == (4, 3)
    assert not settings.engine.enable_prefix_caching


def test_the_front_listens_and_not_the_replicas() -> None:
    given = environment_of("--host", "0.0.0.0", "--port", "9000", EAGRE_UDS="/x", EAGRE_METRICS_PORT="1")
    assert given == {"EAGRE_THREADS": "1"}


@pytest.mark.parametrize(
    ("cpus", "variables", "threads"), [(0.5, {}, "1"), (6, {}, "6"), (6, {"EAGRE_THREADS": "2"}, "2")]
)
def test_a_replica_computes_with_the_cores_that_it_reserves(
    cpus: float, variables: dict[str, str], threads: str
) -> None:
    assert environment_of(cpus=cpus, **variables)["EAGRE_THREADS"] == threads


@pytest.mark.parametrize(("flag", "value"), [("--store", "x.db"), ("--kv-events", "tcp://*:5557")])
def test_what_several_servers_cannot_share_is_refused_by_name(flag: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{flag} does not go with `eagre deploy`"):
        environment_of(flag, value)


def test_replicas_of_one_machine_do_not_take_more_than_all_of_its_memory() -> None:
    assert share_of_memory(0.1, 4) == 0.1
    assert share_of_memory(0.1, 16) == 0.05
