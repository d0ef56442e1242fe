"""Makes the JSON files of this folder: what transformers computes for tiny encoders.

In the virtual environment of tests/golden/architectures/make.py:

    goldenv/bin/python -m tests.golden.encoders.make [NAME...]
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.golden.architectures.make import FILE, NOT_OF_THE_MODEL, write_untrained
from tests.golden.architectures.tiny_weights import tiny_weights
from tests.golden.encoders.stand_ins import STAND_INS

HERE = Path(__file__).parent
SEED = 3
VOCAB = 64
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 150,
}  # fmt: skip
_MODERN = {**_SIZES, "num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _SIZES),
    "bert_tanh": ("BertModel", {**_SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    "bert_classifier": ("BertForSequenceClassification", {**_SIZES, "num_labels": 1}),
    "xlm_roberta": ("XLMRobertaModel", {**_SIZES, "type_vocab_size": 1}),
    "xlm_roberta_classifier": (
        "XLMRobertaForSequenceClassification",
        {**_SIZES, "type_vocab_size": 1, "num_labels": 3},
    ),
    "nomic_bert": ("NomicBertModel", _SIZES),
    "nomic_bert_moe": (
        "NomicBertModel",
        {
            "model_type": "nomic_bert", "vocab_size": VOCAB, "n_embd": 64, "n_inner": 96, "n_layer": 4, "n_head": 2,
            "n_positions": 150, "max_trained_positions": 150, "layer_norm_epsilon": 1e-5, "type_vocab_size": 1,
            "rotary_emb_base": 10000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None, "activation_function": "gelu", "prenorm": False, "parallel_block": False,
            "use_rms_norm": False, "causal": False, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
            "moe_every_n_layers": 2, "num_experts": 6, "moe_top_k": 2, "moe_normalize_expert_weights": False,
            "expert_choice_router": False, "num_shared_experts": 0,
        },
    ),
    "llama_embed": (
        "LlamaBidirectionalModel",
        {
            **_SIZES, "model_type": "llama_bidirec", "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        },
    ),
    "jina_v3": ("JinaEmbeddingsV3Model", {**_SIZES, "type_vocab_size": 1}),
    # Both kinds of layers, and windows that are narrower than a tile.
    "modern_bert": ("ModernBertModel", {**_MODERN, "local_attention": 24}),
    "modern_bert_classifier": (
        "ModernBertForSequenceClassification",
        {**_MODERN, "num_labels": 3, "classifier_pooling": "mean", "classifier_bias": True},
    ),
    "gemma_embedding": (
        "Gemma3TextModel",
        {
            **_SIZES, "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 32, "sliding_window": 40,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 32, "use_bidirectional_attention": True,
        },
    ),
    # A decoder: its head reads the last token.
    "qwen3_classifier": (
        "Qwen3ForSequenceClassification",
        {**_SIZES, "num_key_value_heads": 1, "head_dim": 32, "num_labels": 2, "pad_token_id": 0},
    ),
}  # fmt: skip
# Tokens of a text, and where the second text of a pair begins; below, at and above a tile.
TEXTS = ((2, 0), (3, 2), (17, 8), (64, 30), (65, 0), (130, 70))


def text_of(length: int) -> list[int]:
    """Token ids that differ from text to text; none is one that transformers takes for padding."""
    return [2 + (7 * length + 5 * index + index * index) % (VOCAB - 2) for index in range(length)]


def make(name: str) -> None:
    """Makes one file."""
    class_name, arguments = CONFIGS[name]
    stand_in = STAND_INS.get(name)
    with tempfile.TemporaryDirectory() as folder:
        if stand_in is None:
            shapes, config = write_untrained(class_name, arguments, Path(folder))
        else:
            shapes, config = stand_in.shapes(arguments), {"architectures": [class_name], **arguments}
        weights = tiny_weights(class_name, shapes, SEED)
        tensors = {tensor: torch.from_numpy(values) for tensor, values in weights.items()}
        if stand_in is None:
            save_file(tensors, f"{folder}/{FILE}", metadata={"format": "pt"})
            model_class = getattr(transformers, class_name)
            model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        else:
            model = stand_in.load(tensors, arguments, Path(folder))
        texts = [outputs(model, *text) for text in TEXTS]
    content = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "config": {key: value for key, value in config.items() if key not in NOT_OF_THE_MODEL},
        "seed": SEED,
        "shapes": shapes,
    }
    header = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items())
    lines = ",\n".join(json.dumps(text) for text in texts)
    (HERE / f"{name}.json").write_text(f'{{\n{header}"texts": [\n{lines}\n]\n}}\n', encoding="utf-8")
    print(name, texts[2])


def outputs(model: Any, length: int, second_start: int) -> dict[str, Any]:
    """The pooled states of a text, or its scores."""
    token_ids = text_of(length)
    inputs = {"input_ids": torch.tensor([token_ids]), "attention_mask": torch.ones(1, length, dtype=torch.long)}
    if second_start and getattr(model.config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = torch.tensor([[int(index >= second_start) for index in range(length)]])
    with torch.inference_mode():
        made = model(**inputs)
    entry: dict[str, Any] = {"token_ids": token_ids, "second_start": second_start}
    if hasattr(made, "logits"):
        return {**entry, "scores": rounded(made.logits[0])}
    states = made.last_hidden_state[0]
    pooled = {"cls": states[0], "last": states[-1], "mean": states.mean(dim=0)}
    return {**entry, **{kind: rounded(values) for kind, values in pooled.items()}}


def rounded(values: Any) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:] or CONFIGS:
        make(each)
