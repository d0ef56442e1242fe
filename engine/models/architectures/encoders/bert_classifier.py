"""BERT with a head for labels: cross-encoders, which score pairs of texts, and classifiers."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from engine.interface.errors import ModelError
from engine.models.architectures.encoders.bert import read_bert
from engine.models.parts.encoders.encoder import Names
from engine.models.parts.encoders.encoder_config import read_num_labels
from engine.models.parts.encoders.scoring_head import ScoringEncoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class BertClassifier(ScoringEncoder):
    """BERT whose pooler and classifier make scores."""

    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(r"bert\.embeddings\.position_ids")
    dense_names: ClassVar[Names] = ("bert.pooler.dense", "cls")
    output_names: ClassVar[Names] = ("classifier", "cls.output")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(replace(read_bert(config, tensor_names), num_labels=read_num_labels(config)))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        raise ModelError("a GGUF file of this architecture lacks the pooler")
