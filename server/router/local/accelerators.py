"""One GPU for each server of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from server.startup.settings import SettingsError

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_GPUS = Path("/proc/driver/nvidia/gpus")  # the driver has a folder there for each


def gpu_of_each(
    num_replicas: int, environment: Mapping[str, str], *, has_plugin: bool | None = None, gpus: Path = _GPUS
) -> list[str] | None:
    """CUDA_VISIBLE_DEVICES of each server; None where JAX computes on the CPU.

    A process of JAX takes nearly all memory of each GPU that it sees, so two servers cannot share one.

    Args:
        environment: of this process; JAX_PLATFORMS and CUDA_VISIBLE_DEVICES count.
        has_plugin: whether JAX can use NVIDIA's GPUs; looked up if None.

    Raises:
        SettingsError: there are GPUs, and fewer than servers.
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
