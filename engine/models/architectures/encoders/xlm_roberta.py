"""RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020): BERT with other positions and another head."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from engine.models.architectures.encoders.bert import Bert, read_bert
from engine.models.parts.encoders.encoder import Encoder, Names
from engine.models.parts.encoders.encoder_config import EncoderConfig, num_rows, read_num_labels
from engine.models.parts.encoders.scoring_head import ScoringEncoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class XlmRoberta(Encoder):
    """An encoder whose first position is the one behind that of the padding token."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(_read(config, tensor_names))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(Bert.from_gguf(file).config)  # the converter writes it as a BERT


@dataclass(frozen=True)
class XlmRobertaClassifier(ScoringEncoder):
    """The same with a head for labels."""

    dense_names: ClassVar[Names] = ("classifier.dense", "cls")
    output_names: ClassVar[Names] = ("classifier.out_proj", "cls.output")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(replace(_read(config, tensor_names), num_labels=read_num_labels(config)))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(replace(Bert.from_gguf(file).config, num_labels=num_rows(file, "cls.output.weight")))


def _read(config: JsonFile, tensor_names: Set[str]) -> EncoderConfig:
    usual = read_bert(config, tensor_names)
    padding = config.integer("pad_token_id", least=0)
    first = (1 if padding is None else padding) + 1
    if usual.context_length <= first + 1:
        raise config.error("max_position_embeddings", f"it must be above {first + 1}")
    has_prefix = "roberta.embeddings.word_embeddings.weight" in tensor_names
    return replace(
        usual,
        context_length=usual.context_length - first,
        first_position=first,
        prefix="roberta." if has_prefix else "",
    )
