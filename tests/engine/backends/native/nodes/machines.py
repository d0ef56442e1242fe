"""Folders as Linux's /sys/devices/system, of machines that are not at hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_machine(folder: Path, nodes: Mapping[int, str], siblings: Mapping[int, str] | None = None) -> Path:
    """A machine whose memory nodes have these lists of processors.

    Args:
        siblings: by processor the list of those of its core. Of the others the system tells nothing.
    """
    (folder / "node").mkdir(parents=True)
    (folder / "node" / "online").write_text(",".join(map(str, nodes)) + "\n")
    for node, processors in nodes.items():
        (folder / "node" / f"node{node}").mkdir()
        (folder / "node" / f"node{node}" / "cpulist").write_text(processors + "\n")
    for processor, of_core in (siblings or {}).items():
        topology = folder / "cpu" / f"cpu{processor}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(of_core + "\n")
    return folder
