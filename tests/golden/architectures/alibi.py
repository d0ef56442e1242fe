"""Jais and Baichuan 13B in plain torch, as their makers' code computes them, of which no line is here."""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import layer_norm, linear, rms_norm, silu

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]


def jais_shapes(config: Config) -> dict[str, list[int]]:
    hidden, inner = config["n_embd"], config["n_inner"]
    shapes = {"transformer.wte.weight": [config["vocab_size"], hidden]}
    shapes |= {f"transformer.ln_f.{kind}": [hidden] for kind in ("weight", "bias")}
    sizes = {
        "attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden), "mlp.c_fc": (hidden, inner),
        "mlp.c_fc2": (hidden, inner), "mlp.c_proj": (inner, hidden),
    }  # fmt: skip
    for layer in range(config["n_layer"]):
        before = f"transformer.h.{layer}."
        shapes |= {f"{before}ln_{number}.{kind}": [hidden] for number in (1, 2) for kind in ("weight", "bias")}
        for name, (inputs, outputs) in sizes.items():
            shapes |= {f"{before}{name}.weight": [inputs, outputs], f"{before}{name}.bias": [outputs]}
    return shapes | {"lm_head.weight": [config["vocab_size"], hidden]}


def baichuan_shapes(config: Config) -> dict[str, list[int]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    vocab = [config["vocab_size"], hidden]
    shapes = {"model.embed_tokens.weight": vocab, "lm_head.weight": vocab, "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        shapes |= {
            f"{before}input_layernorm.weight": [hidden], f"{before}post_attention_layernorm.weight": [hidden],
            f"{before}self_attn.W_pack.weight": [3 * hidden, hidden],
            f"{before}self_attn.o_proj.weight": [hidden, hidden],
            f"{before}mlp.gate_proj.weight": [inner, hidden], f"{before}mlp.up_proj.weight": [inner, hidden],
            f"{before}mlp.down_proj.weight": [hidden, inner],
        }  # fmt: skip
    return shapes


class Alibi:
    """Logits of a text."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        self.tensors, self.config = tensors, config

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        return SimpleNamespace(logits=self._logits(input_ids[0])[None])

    def _logits(self, tokens: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _attended(self, qkv: torch.Tensor, num_heads: int, scale: float) -> torch.Tensor:
        """Attention whose scores fall with distance, of all queries, all keys and all values side by side."""
        length = len(qkv)
        q, k, v = (part.reshape(length, num_heads, -1).swapaxes(0, 1) for part in qkv.chunk(3, dim=1))
        distance = torch.arange(length)[:, None] - torch.arange(length)
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / num_heads) for head in range(num_heads)])
        scores = q @ k.swapaxes(1, 2) * scale - slopes[:, None, None] * distance
        scores = scores.masked_fill(distance < 0, -math.inf)
        return (scores.softmax(dim=-1) @ v).swapaxes(0, 1).reshape(length, -1)


class Jais(Alibi):
    def _logits(self, tokens: torch.Tensor) -> torch.Tensor:
        config, tensors = self.config, self.tensors
        x = tensors["transformer.wte.weight"][tokens] * config["mup_embeddings_scale"]
        head_dim = config["n_embd"] // config["n_head"]
        for layer in range(config["n_layer"]):
            before = f"transformer.h.{layer}."
            qkv = self._product(self._normed(x, f"{before}ln_1"), f"{before}attn.c_attn")
            x = x + self._product(self._attended(qkv, config["n_head"], 1 / head_dim), f"{before}attn.c_proj")
            normed = self._normed(x, f"{before}ln_2")
            gate = silu(self._product(normed, f"{before}mlp.c_fc2"))
            x = x + self._product(self._product(normed, f"{before}mlp.c_fc") * gate, f"{before}mlp.c_proj")
        logits = linear(self._normed(x, "transformer.ln_f"), tensors["lm_head.weight"])
        return logits * (config["mup_output_alpha"] * config["mup_width_scale"])

    def _product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = (self.tensors[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return layer_norm(x, x.shape[-1:], weight, bias, self.config["layer_norm_epsilon"])


class Baichuan(Alibi):
    def _logits(self, tokens: torch.Tensor) -> torch.Tensor:
        config = self.config
        x = self.tensors["model.embed_tokens.weight"][tokens]
        scale = (config["hidden_size"] // config["num_attention_heads"]) ** -0.5
        for layer in range(config["num_hidden_layers"]):
            before = f"model.layers.{layer}."
            qkv = self._product(self._normed(x, f"{before}input_layernorm"), f"{before}self_attn.W_pack")
            attended = self._attended(qkv, config["num_attention_heads"], scale)
            x = x + self._product(attended, f"{before}self_attn.o_proj")
            normed = self._normed(x, f"{before}post_attention_layernorm")
            gate = silu(self._product(normed, f"{before}mlp.gate_proj"))
            x = x + self._product(gate * self._product(normed, f"{before}mlp.up_proj"), f"{before}mlp.down_proj")
        return self._product(self._normed(x, "model.norm"), "lm_head")

    def _product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.tensors[f"{name}.weight"])

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])
