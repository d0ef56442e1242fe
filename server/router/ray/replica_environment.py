"""The environment of a Ray replica's server: the settings of the command, without the router's own."""

from collections.abc import Iterable, Mapping
from typing import Any

from engine.interface.setting import Setting
from server.router.local.replica_settings import THREADS
from server.startup.flags import ENVIRONMENT_PREFIX, flag_name, variable_name
from server.startup.settings import ServerSettings, SettingsError

# The router listens for clients; the address of a replica is chosen on its machine.
_ROUTER_KEYS = (
    "host", "port", "uds", "metrics_port", "ssl_certfile", "ssl_keyfile", "front_key", "replica_name",
)  # fmt: skip
# Settings that several servers cannot share, and why.
_NOT_SHARED = {
    "config": "the machines of the replicas do not have the file; give its keys as flags",
    "store": "the file belongs to one server alone",
    "data_parallel": "it is Ray that places several servers on a machine",
    "num_hosts": "each replica is one process",
    "prefix_cache_listen": "the replicas of one machine cannot share a port",
    "kv_events": "the replicas of one machine cannot share a port",
}

MAX_MEMORY = 0.8  # for the pages of all replicas of a machine together


def replica_environment(
    flags: Mapping[str, Any], environment: Mapping[str, str], replica_cpus: float
) -> dict[str, str]:
    """The settings of the command line and of `environment` as variables for a replica's server.

    Other users of a machine could read flags, keys among them. `replica_cpus` are also its threads, unless
    EAGRE_THREADS is given. Raises SettingsError: a setting is given that several servers cannot share.
    """
    declared = {setting.key: setting for setting in ServerSettings.declared()}
    given = {name: text for name, text in environment.items() if name.startswith(ENVIRONMENT_PREFIX)}
    given |= _as_variables(declared.values(), flags)
    for key, reason in _NOT_SHARED.items():
        setting = declared[key]
        if given.get(variable_name(setting)):
            raise SettingsError(f"{flag_name(setting)} does not go with `eagre deploy`: {reason}")
    for key in _ROUTER_KEYS:
        given.pop(variable_name(declared[key]), None)
    return {THREADS: str(max(1, int(replica_cpus)))} | given


def _as_variables(settings: Iterable[Setting], flags: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for setting in settings:
        value = flags.get(setting.key)
        if isinstance(value, list):
            value = ",".join(value)
        if value is not None:
            texts[variable_name(setting)] = "1" if value is True else str(value)
    return texts


def share_of_memory(wanted: float, num_replicas: int) -> float:
    """`--memory-utilization` of one of `num_replicas` replicas of a machine: what is wanted, if all can have it."""
    return min(wanted, MAX_MEMORY / num_replicas)
