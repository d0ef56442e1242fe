"""The table of one model in the file of `--config`, and the further names that requests may call the model by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What holds for a request that does not say it: fields of SamplingParams, and variables of the chat template."""

    sampling: Mapping[str, int | float] = field(default_factory=dict)
    template_variables: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.sampling or self.template_variables)

    def over(self, others: RequestDefaults) -> RequestDefaults:
        """These defaults, and those of `others` for what these leave open."""
        return RequestDefaults(
            {**others.sampling, **self.sampling}, {**others.template_variables, **self.template_variables}
        )


@dataclass(frozen=True, slots=True)
class Preset:
    """Further names of a model, under which other defaults hold."""

    name: str
    aliases: tuple[str, ...] = ()
    defaults: RequestDefaults = RequestDefaults()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class ModelTable:
    """A model of the file: what is loaded, its names, and the settings that it has for itself."""

    name: str
    model: str  # as for --model
    aliases: tuple[str, ...] = ()
    defaults: RequestDefaults = RequestDefaults()
    is_pinned: bool = False  # whether it never makes room for another model
    settings: Mapping[str, Any] = field(default_factory=dict)  # values by the settings' keys
    presets: tuple[Preset, ...] = ()  # the tables whose `model` is the name of this one

    @property
    def further_names(self) -> Iterator[str]:
        """All names but its own."""
        yield from self.aliases
        for preset in self.presets:
            yield from preset.names
