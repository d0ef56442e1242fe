"""`eagre models`: lists the models on this machine and the memory that each needs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from engine.interface.config import EngineConfig
from engine.interface.types import MachineMemory, ModelFootprint
from server.model_sources.available_models import AvailableModel, all_models, find_model
from server.startup.plain_text import one_line

HEADER = ("NAME", "SOURCE", "QUANTIZATION", "PARAMETERS", "WEIGHTS", "1,000 TOKENS", "FITS")
_ALIGN = "<<<>>><"  # of the columns: words to the left, figures to the right
NUM_TOKENS = 1000  # the KV cache is shown for so many


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model and the memory that it needs, or the error if it cannot be opened."""

    listed: AvailableModel
    footprint: ModelFootprint | None
    error: str | None

    @property
    def cache_bytes(self) -> int | None:
        """The KV cache of one sequence of NUM_TOKENS tokens."""
        found = self.footprint
        return None if found is None else found.kv_bytes(NUM_TOKENS) + found.state_bytes

    @property
    def modalities(self) -> list[str] | None:
        """What it reads; None if not known."""
        if self.footprint is None:
            return None
        return ["text", "image"] if self.footprint.image_tokens else ["text"]

    def fits(self, memory: MachineMemory) -> bool | None:
        """Whether the weights and the cache of NUM_TOKENS tokens fit into the memory now; None if not known."""
        if self.footprint is None or self.cache_bytes is None:
            needed = None if self.error is not None else self.listed.memory_bytes
            return None if needed is None else needed <= memory.usable
        return self.footprint.weight_bytes + self.cache_bytes <= memory.usable


def measure_models(paths: Iterable[str], config: EngineConfig) -> tuple[list[MeasuredModel], MachineMemory]:
    """All models on this machine and in `paths`. Only the headers of their files are read."""
    from engine.client import EngineClient  # it imports JAX

    return [_measure(listed, config) for listed in all_models(paths)], EngineClient.machine_memory()


def measure_one(model: str, config: EngineConfig) -> tuple[MeasuredModel, MachineMemory]:
    """The model that a value of --model means; raises ModelStoreError where there is none."""
    from engine.client import EngineClient

    return _measure(find_model(model), config), EngineClient.machine_memory()


def _measure(listed: AvailableModel, config: EngineConfig) -> MeasuredModel:
    from engine.client import EngineClient

    if listed.path is None:
        return MeasuredModel(listed, None, listed.error)
    try:
        return MeasuredModel(listed, EngineClient.footprint(listed.path, config), None)
    except (ValueError, OSError) as error:  # ModelError is a ValueError
        return MeasuredModel(listed, None, str(error))


def as_json(models: Iterable[MeasuredModel], memory: MachineMemory) -> str:
    """One JSON object, in bytes and tokens; unknown values are null."""

    def describe(model: MeasuredModel) -> dict[str, Any]:
        known = {} if model.footprint is None else asdict(model.footprint)
        fields = (
            "architecture", "quantization", "num_parameters", "context_length", "weight_bytes", "encoder_bytes",
            "image_tokens",
        )  # fmt: skip
        return {
            "name": model.listed.name,
            "source": model.listed.source,
            "path": None if model.listed.path is None else str(model.listed.path),
            "download_bytes": model.listed.download_bytes,
            "license": model.listed.license,
            "summary": model.listed.summary,
            "memory_bytes": model.listed.memory_bytes,
            **{field: known.get(field) for field in fields},
            "modalities": model.modalities,
            "cache_bytes_per_1000_tokens": model.cache_bytes,
            "fits": model.fits(memory),
            "error": model.error,
        }

    content = {"memory": asdict(memory), "models": [describe(model) for model in models]}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def as_table(models: Iterable[MeasuredModel], memory: MachineMemory) -> str:
    """A table for people, with notes below the lines of models."""
    rows = [(HEADER, ""), *((_row(model, memory), _note(model)) for model in models)]
    widths = [max(len(row[column]) for row, _ in rows) for column in range(len(HEADER))]
    lines = []
    for row, note in rows:
        lines.append(
            "  ".join(
                f"{cell:{_ALIGN[i]}{width}}" for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )
        lines += [f"  {note}"] if note else []
    room, total = (f"{count / 1e9:.1f} GB" for count in (memory.usable, memory.total))
    lines.append(
        f"\n{room} of {total} of memory are available now. FITS counts the weights and the cache of 1,000 tokens."
    )
    return "\n".join(lines) + "\n"


def _row(model: MeasuredModel, memory: MachineMemory) -> tuple[str, ...]:
    known, fits = model.footprint, model.fits(memory)
    return (
        one_line(model.listed.name),
        one_line(model.listed.source),
        "-" if known is None or known.quantization is None else one_line(known.quantization),
        "-" if known is None else _short(known.num_parameters, (" B", " M", " K")),
        "-" if known is None else _size(known.weight_bytes),
        "-" if model.cache_bytes is None else _size(model.cache_bytes),
        "-" if fits is None else "yes" if fits else "no",
    )


def _note(model: MeasuredModel) -> str:
    listed = model.listed
    if model.error is not None:
        return one_line(model.error)
    notes = [] if listed.summary is None else [listed.summary]
    known = model.footprint
    if known is not None and known.image_tokens:
        encoder = f"its encoder is {_size(known.encoder_bytes)} of the weights"
        notes.append(f"sees: a picture takes {known.image_tokens} tokens, and {encoder}")
    if listed.download_bytes is not None:
        command = f"`eagre pull {listed.name}` fetches {_size(listed.download_bytes)}"
        notes.append(f"not here yet; {command}, under the {listed.license}")
        if listed.memory_bytes is not None:
            notes.append(f"it takes about {_size(listed.memory_bytes)} of memory")
    return "; ".join(notes)


def _size(num_bytes: int) -> str:
    return _short(num_bytes, (" GB", " MB", " KB"))


def _short(count: int, units: tuple[str, str, str]) -> str:
    """Formats a count with two or three digits and a unit for 10⁹, 10⁶ or 10³."""
    for power, unit in zip((1e9, 1e6, 1e3), units, strict=True):
        if count >= power:
            return f"{count / power:.{0 if count >= 100 * power else 1}f}{unit}"
    return str(count)
