"""The BERT architecture (Devlin et al., "BERT", 2018), as sentence encoders have it."""

from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.backends.base.operands import Activation
from engine.models.parts import gguf_config
from engine.models.parts.encoders.encoder import Encoder
from engine.models.parts.encoders.encoder_config import EncoderConfig, num_rows, read_activation, read_sizes_of_encoder
from engine.models.parts.folder_config import read_epsilon
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Bert(Encoder):
    """Learned positions, two types of tokens, LayerNorms behind the blocks."""

    may_be_int8: ClassVar[bool] = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(read_bert(config, tensor_names))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        if file.fields.value("attention.causal") is True:
            raise file.fields.error("attention.causal", "an encoder sees its whole text")
        sizes = gguf_config.read_sizes(file)
        return cls(
            EncoderConfig(
                **sizes,
                layer_norm_eps=gguf_config.read_epsilon(file, "attention.layer_norm_epsilon"),
                activation=Activation.GELU_ERF,
                num_token_types=num_rows(file, "token_types.weight"),
            )
        )


def read_bert(config: JsonFile, tensor_names: Set[str]) -> EncoderConfig:
    """The configuration of a BERT without a head; raises ModelError."""
    kind = config.text("position_embedding_type")
    if kind not in (None, "absolute"):
        raise config.error("position_embedding_type", 'it must be "absolute"')
    if config.flag("is_decoder"):
        raise config.error("is_decoder", "an encoder sees its whole text")
    return EncoderConfig(
        **read_sizes_of_encoder(config),
        layer_norm_eps=read_epsilon(config, "layer_norm_eps", 1e-12),
        activation=read_activation(config),
        num_token_types=config.integer("type_vocab_size", least=1) or 2,
        prefix="bert." if "bert.embeddings.word_embeddings.weight" in tensor_names else "",
    )
