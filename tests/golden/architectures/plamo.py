"""PLaMo 2 and 3 in plain torch: what PFN's code computes, which is published beside the weights; no line of it is here.

Sources: llama.cpp's graphs and converter, and the configurations and layers that vLLM and MLX have for these models.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import conv1d, linear, pad, rms_norm, silu, softplus

Tensors = dict[str, torch.Tensor]
Config = Mapping[str, Any]

_OFFSETS = {"post_mixer_norm": 1 / 5, "post_mlp_norm": 1 / 5**1.5}
_HEAD_EPSILON = 1e-6


def time_rank(config: Config) -> int:
    return max(64, config["hidden_size"] // 16)


def is_mamba(config: Config, layer: int) -> bool:
    step = config["mamba_step"]
    return bool(layer % step != step // 2)


def plamo_shapes(config: Config) -> dict[str, list[int]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    is_second = "mamba_step" in config
    head_dim = config["hidden_size_per_head"] if is_second else config["head_dim"]
    vocab = [config["vocab_size"], hidden]
    shapes = {"model.embed_tokens.weight": vocab, "lm_head.weight": vocab, "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.layers.{layer}."
        norms = ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
        shapes |= {f"{before}{norm}.weight": [hidden] for norm in norms}
        shapes |= {
            f"{before}mlp.gate_up_proj.weight": [2 * inner, hidden],
            f"{before}mlp.down_proj.weight": [hidden, inner],
        }
        mixer = f"{before}mixer."
        if is_second and is_mamba(config, layer):
            size, states, rank = config["mamba_num_heads"] * head_dim, config["mamba_d_state"], time_rank(config)
            shapes |= {
                f"{mixer}in_proj.weight": [2 * size, hidden], f"{mixer}out_proj.weight": [hidden, size],
                f"{mixer}conv1d.weight": [size, 1, config["mamba_d_conv"]],
                f"{mixer}bcdt_proj.weight": [rank + 2 * states, size],
                f"{mixer}dt_proj.weight": [config["mamba_num_heads"], rank],
                f"{mixer}dt_bias": [config["mamba_num_heads"]], f"{mixer}A_log": [config["mamba_num_heads"]],
                f"{mixer}D": [config["mamba_num_heads"]], f"{mixer}dt_norm_weight": [rank],
                f"{mixer}B_norm_weight": [states], f"{mixer}C_norm_weight": [states],
            }  # fmt: skip
            continue
        shapes |= {
            f"{mixer}qkv_proj.weight": [(heads + 2 * kv_heads) * head_dim, hidden],
            f"{mixer}o_proj.weight": [hidden, heads * head_dim],
        }
        if is_second:
            shapes |= {f"{mixer}q_weight": [heads, head_dim], f"{mixer}k_weight": [kv_heads, head_dim]}
        else:
            shapes |= {f"{mixer}{kind}_norm.weight": [head_dim] for kind in "qk"}
    return shapes


class Plamo:
    """Logits of a text, of either architecture."""

    def __init__(self, tensors: Tensors, config: Config, folder: Path) -> None:
        self.tensors, self.config = tensors, config
        self.is_second = "mamba_step" in config
        self.head_dim = config["hidden_size_per_head"] if self.is_second else config["head_dim"]

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        x = self.tensors["model.embed_tokens.weight"][input_ids[0]]
        for layer in range(self.config["num_hidden_layers"]):
            before = f"model.layers.layers.{layer}."
            inputs = self._normed(x, f"{before}pre_mixer_norm")
            mixes = self.is_second and is_mamba(self.config, layer)
            mixed = self._state_space(inputs, f"{before}mixer.") if mixes else self._attended(inputs, layer)
            x = x + self._normed(mixed, f"{before}post_mixer_norm")
            gate, up = self._product(self._normed(x, f"{before}pre_mlp_norm"), f"{before}mlp.gate_up_proj").chunk(2, -1)
            x = x + self._normed(self._product(silu(gate) * up, f"{before}mlp.down_proj"), f"{before}post_mlp_norm")
        return SimpleNamespace(logits=linear(self._normed(x, "model.norm"), self.tensors["lm_head.weight"])[None])

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weights = self.tensors[f"{name}.weight"] + _OFFSETS.get(name.rpartition(".")[2], 1.0)
        return rms_norm(x, x.shape[-1:], weights, self.config["rms_norm_eps"])

    def _product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.tensors[f"{name}.weight"])

    def _attended(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        config, length, mixer = self.config, len(x), f"model.layers.layers.{layer}.mixer."
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        made = self._product(x, f"{mixer}qkv_proj").reshape(length, -1, self.head_dim)
        q, k, v = made.split([heads, kv_heads, kv_heads], dim=1)
        if self.is_second:
            q, k = (
                rms_norm(part, part.shape[-1:], None, _HEAD_EPSILON) * self.tensors[f"{mixer}{kind}_weight"]
                for kind, part in (("q", q), ("k", k))
            )
            sees_all, window = layer in config["full_attention_idx"], config["attention_window_size"] + 1
        else:
            q, k = (self._normed(part, f"{mixer}{kind}_norm") for kind, part in (("q", q), ("k", k)))
            sees_all, window = (layer + 1) % config["sliding_window_pattern"] == 0, config["window_size"]
        frequencies, magnitude = self._rotation(sees_all)
        angles = torch.arange(length, dtype=torch.float32)[:, None, None] * frequencies
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        q, k = (_rotated(part, cos, sin).swapaxes(0, 1) for part in (q, k))
        shared = heads // kv_heads
        k, v = k.repeat_interleave(shared, dim=0), v.swapaxes(0, 1).repeat_interleave(shared, dim=0)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        is_seen = (distance >= 0) & (sees_all | (distance < window))
        scores = (q @ k.swapaxes(1, 2) / math.sqrt(self.head_dim)).masked_fill(~is_seen, -math.inf)
        mixed = (scores.softmax(dim=-1) @ v).swapaxes(0, 1).reshape(length, -1)
        return self._product(mixed, f"{mixer}o_proj")

    def _rotation(self, sees_all: bool) -> tuple[torch.Tensor, float]:
        """Frequencies and magnitude: YaRN's without truncation in PLaMo 3's layers that see all."""
        config, dim = self.config, self.head_dim
        theta = config["rope_theta" if sees_all else "rope_local_theta"]
        frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        factor = config.get("rope_scaling_factor", 1)
        if not sees_all or factor == 1:
            return frequencies, 1.0

        def pair_that_turns(number: float) -> float:
            return dim * math.log(config["initial_context_length"] / (number * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(pair_that_turns(32), 0), min(pair_that_turns(1), dim - 1)
        ramp = ((torch.arange(dim // 2) - low) / (high - low)).clamp(0, 1)
        return frequencies / factor * ramp + frequencies * (1 - ramp), 0.1 * math.log(factor) + 1

    def _state_space(self, x: torch.Tensor, mixer: str) -> torch.Tensor:
        config, length = self.config, len(x)
        heads, states = config["mamba_num_heads"], config["mamba_d_state"]
        gates, values = self._product(x, f"{mixer}in_proj").reshape(length, heads, -1).chunk(2, dim=-1)
        weights = self.tensors[f"{mixer}conv1d.weight"]
        inputs = pad(values.reshape(length, -1).T, (weights.shape[2] - 1, 0))
        mixed = silu(conv1d(inputs[None], weights, groups=len(weights))[0].T)
        b, c, steps = self._product(mixed, f"{mixer}bcdt_proj").split([states, states, time_rank(config)], dim=-1)
        b, c, steps = (
            rms_norm(part, part.shape[-1:], self.tensors[f"{mixer}{name}_norm_weight"], config["rms_norm_eps"])
            for name, part in (("B", b), ("C", c), ("dt", steps))
        )
        steps = softplus(self._product(steps, f"{mixer}dt_proj") + self.tensors[f"{mixer}dt_bias"])
        decays = -self.tensors[f"{mixer}A_log"].exp()
        by_head, skip = mixed.reshape(length, heads, -1), self.tensors[f"{mixer}D"]
        state = torch.zeros(heads, by_head.shape[-1], states)
        outputs = []
        for token in range(length):
            step = steps[token][:, None, None]
            added = step * by_head[token][:, :, None] * b[token]
            state = state * (step * decays[:, None, None]).exp() + added
            outputs.append(state @ c[token] + skip[:, None] * by_head[token])
        return self._product((torch.stack(outputs) * silu(gates)).reshape(length, -1), f"{mixer}out_proj")


def _rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
