"""Weights from a folder in Hugging Face's layout into a parameter tree.

Names of the tensors and of the configuration's fields are those of Hugging Face transformers'
LlamaForCausalLM. Queries and keys are stored for the rotation that the model does, unlike in GGUF.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from engine.border.types import Progress
from engine.models import llama
from engine.weights.formats.model_folder import ARCHITECTURE, JsonFile, ModelFolder, ModelFolderError
from engine.weights.formats.safetensors_files import SafetensorsFiles, StoredTensor
from engine.weights.loader import TensorNames, WeightsError, WeightsFormat, load_params

EMBEDDING = "model.embed_tokens.weight"  # [vocab, hidden]
OUTPUT_NORM = "model.norm.weight"  # [hidden]
OUTPUT = "lm_head.weight"  # [vocab, hidden]

_LAYER = "model.layers.{}."
NAMES = TensorNames(
    attention_norm=_LAYER + "input_layernorm.weight",
    qkv=tuple(f"{_LAYER}self_attn.{name}_proj.weight" for name in "qkv"),
    attention_output=(_LAYER + "self_attn.o_proj.weight",),
    mlp_norm=_LAYER + "post_attention_layernorm.weight",
    gate_up=(_LAYER + "mlp.gate_proj.weight", _LAYER + "mlp.up_proj.weight"),
    down=(_LAYER + "mlp.down_proj.weight",),
    embedding=EMBEDDING,
    output_norm=OUTPUT_NORM,
    output=OUTPUT,
)

# What old releases of transformers stored although it follows from the configuration.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

MAX_NUM_LAYERS = 10_000  # a damaged configuration shall not make a list of as many names as it says
NUM_NAMES_SHOWN = 3


class SafetensorsModel:
    """An open model folder: its configuration, and its tensors as they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises:
        WeightsError: the folder is incomplete or damaged, or of a model that is not served.
        """
        try:
            folder = ModelFolder(path)
            self.config = _read_config(folder.config)
            self._files = SafetensorsFiles(folder)
            self._shapes = NAMES.shapes(self.config)
            if not _has_output(folder.config, self._files):
                del self._shapes[OUTPUT]
            self._check_tensors(path)
        except ModelFolderError as error:
            raise WeightsError(str(error)) from error
        self.architecture = "llama"  # as GGUF files call it

    def tensor(self, name: str) -> StoredTensor | None:
        """A tensor that is part of the model, by its name in the files, or None."""
        return self._files.tensor(name) if name in self._shapes else None

    def load(self, wanted: WeightsFormat, progress: Progress) -> llama.LlamaParams:
        """Reads all weights; `progress` counts bytes of the files."""
        return load_params(NAMES, self.config, self.tensor, wanted, progress)

    def _check_tensors(self, path: Path) -> None:
        """Every tensor of the model is there, in its shape and in a format that is read, and no other is."""
        missing = [name for name in self._shapes if name not in self._files.names]
        if missing:
            raise ModelFolderError(f"{path} lacks the {_listed(missing)}")
        unknown = sorted(name for name in self._files.names - self._shapes.keys() if not _DERIVED.fullmatch(name))
        if unknown:
            raise ModelFolderError(f"{path} has what {ARCHITECTURE} does not: the {_listed(unknown)}")
        for name, shape in self._shapes.items():
            found = self._files.tensor(name).shape
            if found != shape:
                raise ModelFolderError(f"{path}: {name} has shape {found}, expected {shape}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:NUM_NAMES_SHOWN]))
    more = len(names) - NUM_NAMES_SHOWN
    return ("tensor " if len(names) == 1 else "tensors ") + shown + (f" and {more} more" if more > 0 else "")


def _read_config(config: JsonFile) -> llama.LlamaConfig:
    """
    Raises:
        ModelFolderError: a field is missing or wrong, or asks for what is not served.
    """
    _refuse_unserved(config)
    hidden_size = config.required_integer("hidden_size", least=1)
    num_heads = config.required_integer("num_attention_heads", least=1)
    num_kv_heads = config.integer("num_key_value_heads", least=1) or num_heads
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"it must divide num_attention_heads ({num_heads})")
    head_dim = config.integer("head_dim", least=1)
    if head_dim is None:
        if hidden_size % num_heads:
            raise config.error("num_attention_heads", f"it must divide hidden_size ({hidden_size})")
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise ModelFolderError(f"{config.path}: the head dimension is {head_dim}; rotary embedding needs an even one")
    return llama.LlamaConfig(
        vocab_size=config.required_integer("vocab_size", least=1),
        hidden_size=hidden_size,
        intermediate_size=config.required_integer("intermediate_size", least=1),
        num_layers=config.required_integer("num_hidden_layers", least=1, most=MAX_NUM_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=config.required_integer("max_position_embeddings", least=2),
        rope_theta=_rope_theta(config),
        # As from GGUF, where 1e-5 has been a float32; converters leave such values here too.
        rms_norm_eps=float(f"{config.positive_number('rms_norm_eps') or 1e-6:.6g}"),
    )


def _refuse_unserved(config: JsonFile) -> None:
    if config.text("model_type") not in (None, "llama"):
        raise config.error("model_type", 'this version serves "llama"')
    if config.text("hidden_act") not in (None, "silu"):
        raise config.error("hidden_act", 'this version serves "silu"')
    for name in ("quantization_config", "compression_config"):
        if config.value(name) is not None:
            raise config.error(name, "quantised checkpoints are not read; F32, F16 and BF16 are")
    for name in ("attention_bias", "mlp_bias"):
        if config.flag(name):
            raise config.error(name, "biases are not served")
    for table in (config, *_rope_tables(config)):
        if table.positive_number("partial_rotary_factor") not in (None, 1.0):
            raise table.error("partial_rotary_factor", "a rotary embedding over a part of the head is not served")
    for table in _rope_tables(config):
        for name in ("rope_type", "type"):
            if table.text(name) not in (None, "default", "none"):
                raise table.error(name, "rotary scaling is not served")


def _rope_tables(config: JsonFile) -> Iterator[JsonFile]:
    """`rope_scaling`, which transformers has called `rope_parameters` since version 5."""
    for name in ("rope_parameters", "rope_scaling"):
        table = config.table(name)
        if table is not None:
            yield table


def _rope_theta(config: JsonFile) -> float:
    for table in (*_rope_tables(config), config):
        theta = table.positive_number("rope_theta")
        if theta is not None:
            return theta
    return 10000.0


def _has_output(config: JsonFile, files: SafetensorsFiles) -> bool:
    """Whether there is an output matrix beside the embedding: one that is stored is used, as in transformers."""
    return not config.flag("tie_word_embeddings") or OUTPUT in files.names
