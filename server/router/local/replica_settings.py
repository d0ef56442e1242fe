"""The share of each of several servers on one machine: settings, cores, memory and GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

from engine.interface.config import EngineConfig
from engine.interface.cpu import SYSTEM, cores_of, granted_cores, own_processors
from engine.interface.setting import settings_of
from server.startup.flags import variable_name, write
from server.startup.settings import ServerSettings, SettingsError

THREADS = "EAGRE_THREADS"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_GPUS = Path("/proc/driver/nvidia/gpus")  # the driver has a folder there for each
ROUTER_CONNECTIONS = 64  # in addition to those of its clients: health checks, and idle ones


def check_shared(settings: ServerSettings) -> None:
    """Raises `SettingsError` where a setting is for one server alone."""
    num_replicas, engine = settings.data_parallel, settings.engine
    if engine.tensor_parallel > 1:
        raise SettingsError(
            f"data_parallel is {num_replicas} and tensor_parallel {engine.tensor_parallel}; "
            "each server would take the same devices"
        )
    if engine.prefix_cache_listen is not None:
        raise SettingsError(
            f"data_parallel is {num_replicas} and prefix_cache_listen {engine.prefix_cache_listen!r}; "
            "the servers behind one front cannot share its port, and share their folder of pages already"
        )
    if engine.kv_events is not None:
        raise SettingsError(
            f"data_parallel is {num_replicas} and kv_events {engine.kv_events!r}; "
            "the servers behind one front cannot share its ports"
        )


def settings_of_replica(settings: ServerSettings, index: int, folder: Path) -> ServerSettings:
    """The settings of one of `settings.data_parallel` servers, which listens on a Unix socket in `folder`.

    Certificate, host names and web origins are the router's. Pages and their memory are divided, and each server has a
    store of its own.
    """
    num_replicas, engine = settings.data_parallel, settings.engine
    share = replace(
        engine,
        memory_utilization=engine.memory_utilization / num_replicas,
        kv_cache_bytes=None if engine.kv_cache_bytes is None else max(1, engine.kv_cache_bytes // num_replicas),
        num_pages=None if engine.num_pages is None else max(2, engine.num_pages // num_replicas),
    )
    return replace(
        settings,
        config=None,  # all that it says is among these settings
        data_parallel=1,
        uds=str(socket_of(folder, index)),
        metrics_port=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        allowed_hosts=(),
        allowed_origins=(),
        max_connections=settings.max_connections + ROUTER_CONNECTIONS,
        replica_name=str(index),
        store=None if settings.store is None else f"{settings.store}.{index}",
        engine=share,
    )


def socket_of(folder: Path, index: int) -> Path:
    return folder / f"{index}.sock"


def environment_of(settings: ServerSettings, num_threads: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server with these settings and so many threads, from that of this process."""
    declared = {variable_name(setting) for setting in ServerSettings.declared()}
    others = {name: value for name, value in environment.items() if name not in declared}
    own = write(settings_of(ServerSettings).values(), settings)
    of_engine = write(settings_of(EngineConfig).values(), settings.engine)
    return {**others, **own, **of_engine, THREADS: str(num_threads)}


def threads_of_each(
    processors: Sequence[frozenset[int] | None], environment: Mapping[str, str], system: Path = SYSTEM
) -> list[int]:
    """The threads of servers that are kept to these processors each, or, where it is None, to none.

    Threads that the environment gives are divided alike. Otherwise there is one for each core, and servers of one
    memory node divide those of their node: nodes may have more and fewer of them. Together there are no more than a
    container's control group grants.
    """
    given = environment.get(THREADS, "")
    if given.isdecimal() and int(given) > 0:
        return [max(1, int(given) // len(processors))] * len(processors)
    granted = granted_cores(system)
    shares = [cores_of(own_processors() if own is None else own, system) // processors.count(own) for own in processors]
    return [max(1, share if granted is None else min(share, granted // len(processors))) for share in shares]


def gpu_of_each(
    num_replicas: int, environment: Mapping[str, str], *, has_plugin: bool | None = None, gpus: Path = _GPUS
) -> list[str] | None:
    """CUDA_VISIBLE_DEVICES of each server, by JAX_PLATFORMS and the like; None where JAX computes on the CPU.

    A process of JAX takes nearly all memory of each GPU that it sees, so two servers cannot share one. Raises
    SettingsError where there are fewer than servers.
    """
    platform = environment.get("JAX_PLATFORMS", "").split(",")[0].strip()
    if platform not in ("", "cuda", "gpu") or not (_has_plugin() if has_plugin is None else has_plugin):
        return None
    listed = environment.get(VISIBLE_GPUS)
    if listed is not None:
        visible = [name.strip() for name in listed.split(",") if name.strip() not in ("", "-1")]
    else:
        visible = [str(number) for number, _ in enumerate(gpus.iterdir())] if gpus.is_dir() else []
    if not visible:
        return None
    if len(visible) < num_replicas:
        raise SettingsError(
            f"data_parallel is {num_replicas} and this machine shows {len(visible)} GPUs; each server needs one of "
            f"its own, or JAX_PLATFORMS=cpu for all of them"
        )
    return visible[:num_replicas]


def _has_plugin() -> bool:
    return any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins"))
