"""What computes the encoders that transformers has no class for.

Nomic Embed 2 is written here once more, after its makers' code, of which no line is here; Llama that sees what follows
is transformers' Llama with a mask that hides nothing.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save_file
from torch.nn.functional import gelu, layer_norm, linear

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]


class StandIn(NamedTuple):
    """What computes the models of a class that transformers does not have."""

    shapes: Callable[[Config], dict[str, list[int]]]  # of a checkpoint's tensors
    load: Callable[[Tensors, Config, Path], Any]


def nomic_shapes(config: Config) -> dict[str, list[int]]:
    hidden, inner, count = config["n_embd"], config["n_inner"], config["num_experts"]
    shapes = {
        "embeddings.word_embeddings.weight": [config["vocab_size"], hidden],
        "embeddings.token_type_embeddings.weight": [config["type_vocab_size"], hidden],
    }
    shapes |= {f"emb_ln.{kind}": [hidden] for kind in ("weight", "bias")}
    for layer in range(config["n_layer"]):
        before = f"encoder.layers.{layer}."
        products = {"attn.Wqkv": (3 * hidden, hidden), "attn.out_proj": (hidden, hidden)}
        if layer % config["moe_every_n_layers"] == 1:
            shapes[f"{before}mlp.router.layer.weight"] = [count, hidden]
            shapes |= {f"{before}mlp.experts.mlp.{name}": [count * inner, hidden] for name in ("w1", "w2")}
            shapes[f"{before}mlp.experts.bias"] = [hidden]
        else:
            products |= {"mlp.fc1": (inner, hidden), "mlp.fc2": (hidden, inner)}
        for name, (outputs, inputs) in products.items():
            shapes |= {f"{before}{name}.weight": [outputs, inputs], f"{before}{name}.bias": [outputs]}
        shapes |= {f"{before}norm{number}.{kind}": [hidden] for number in (1, 2) for kind in ("weight", "bias")}
    return shapes


class Nomic:
    """The hidden states of a text."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        self.tensors = tensors
        self.values = config
        self.config = SimpleNamespace(type_vocab_size=config["type_vocab_size"])

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        x = self.tensors["embeddings.word_embeddings.weight"][input_ids[0]]
        x = self._normed(x + self.tensors["embeddings.token_type_embeddings.weight"][0], "emb_ln")
        for layer in range(self.values["n_layer"]):
            before = f"encoder.layers.{layer}."
            x = self._normed(x + self._attended(x, f"{before}attn."), f"{before}norm1")
            mix = self._experts if layer % self.values["moe_every_n_layers"] == 1 else self._dense
            x = self._normed(x + mix(x, f"{before}mlp."), f"{before}norm2")
        return SimpleNamespace(last_hidden_state=x[None])

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = (self.tensors[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return layer_norm(x, x.shape[-1:], weight, bias, self.values["layer_norm_epsilon"])

    def _product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def _attended(self, x: torch.Tensor, before: str) -> torch.Tensor:
        length, heads = len(x), self.values["n_head"]
        q, k, v = (
            part.reshape(length, heads, -1).swapaxes(0, 1) for part in self._product(x, f"{before}Wqkv").chunk(3, dim=1)
        )
        q, k = self._rotated(q), self._rotated(k)
        shares = (q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return self._product((shares @ v).swapaxes(0, 1).reshape(length, -1), f"{before}out_proj")

    def _rotated(self, heads: torch.Tensor) -> torch.Tensor:
        half = heads.shape[-1] // 2
        frequencies = self.values["rotary_emb_base"] ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(heads.shape[1], dtype=torch.float32)[:, None] * frequencies
        first, second = heads.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _dense(self, x: torch.Tensor, before: str) -> torch.Tensor:
        return self._product(gelu(self._product(x, f"{before}fc1")), f"{before}fc2")

    def _experts(self, x: torch.Tensor, before: str) -> torch.Tensor:
        """The shares that the picked experts have among all; one bias stands behind their sum."""
        count = self.values["num_experts"]
        shares = linear(x, self.tensors[f"{before}router.layer.weight"]).softmax(dim=-1)
        best, picks = shares.topk(self.values["moe_top_k"], dim=-1)
        of_all = (self.tensors[f"{before}experts.mlp.{name}"] for name in ("w1", "w2"))
        ups, downs = (matrix.reshape(count, -1, x.shape[1]) for matrix in of_all)
        total = torch.zeros_like(x)
        for token, (of_token, experts) in enumerate(zip(best, picks, strict=True)):
            for share, expert in zip(of_token, experts, strict=True):
                total[token] += share * (gelu(ups[expert] @ x[token]) @ downs[expert])
        return total + self.tensors[f"{before}experts.bias"]


def llama_shapes(config: Config) -> dict[str, list[int]]:
    same = {key: value for key, value in config.items() if key != "model_type"}
    model = transformers.LlamaModel(transformers.LlamaConfig(**same))
    return {name: list(values.shape) for name, values in sorted(model.state_dict().items())}


class Llama:
    """The hidden states of a text."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        self.config = SimpleNamespace(type_vocab_size=1)
        text = json.dumps({**config, "architectures": ["LlamaModel"], "model_type": "llama"})
        (folder / "config.json").write_text(text, encoding="utf-8")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        loaded = transformers.LlamaModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.model = loaded.eval()

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        length = input_ids.shape[1]
        return self.model(input_ids=input_ids, attention_mask=torch.zeros(1, 1, length, length), use_cache=False)


STAND_INS: dict[str, StandIn] = {
    "nomic_bert_moe": StandIn(nomic_shapes, Nomic),
    "llama_embed": StandIn(llama_shapes, Llama),
}
