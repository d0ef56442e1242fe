"""Makes the golden data of this folder with PyTorch and Hugging Face transformers.

In a virtual environment of its own, never in the project's:

    python -m venv goldenv
    goldenv/bin/pip install torch==2.13.0
    goldenv/bin/pip install transformers gguf
    goldenv/bin/python tests/golden/make_goldens.py MODEL.gguf

The weights are dequantised to float32 and run by transformers' LlamaForCausalLM on one
thread. Nothing of the project is imported, so that the goldens are an independent witness.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize
from golden_inputs import CHAT_PROMPTS, PLAIN_PROMPTS, TOKENIZER_TEXTS
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
NUM_OUTPUT_TOKENS = 64
CONTROL_TOKEN_TYPE = 3

TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def transformers_name(gguf_name: str, names: Mapping[str, str]) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match gguf_name.split("."):
        case ["blk", layer, tensor, suffix]:
            return f"model.layers.{layer}.{names[tensor]}.{suffix}"
        case [tensor, suffix]:
            return f"{names[tensor]}.{suffix}"
    raise ValueError(f"no place for the tensor {gguf_name!r}")


def halves_from_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Puts the query or key rows of each head back into the order that transformers rotates.

    A GGUF of the Llama architecture stores a head's rows so that rotary embedding turns
    neighbours (0, 1), (2, 3), ...; transformers turns row i with row i + head_dim / 2.
    So the even rows become the first half of the head and the odd rows the second.

    rows: [num_heads * head_dim, hidden_size]
    """
    heads = rows.reshape(num_heads, -1, rows.shape[1])
    return np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1).reshape(rows.shape)


def load_model(reader: GGUFReader, field: dict[str, Any]) -> LlamaForCausalLM:
    """The model in float32, every tensor accounted for."""
    num_heads, num_kv_heads = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ".attn_q." in tensor.name:
            values = halves_from_pairs(values, num_heads)
        elif ".attn_k." in tensor.name:
            values = halves_from_pairs(values, num_kv_heads)
        weights[transformers_name(tensor.name, TENSORS)] = torch.from_numpy(values.copy())
    is_tied = "lm_head.weight" not in weights
    config = LlamaConfig(
        vocab_size=len(field["tokenizer.ggml.tokens"]),
        hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"],
        num_hidden_layers=field["llama.block_count"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=field["llama.context_length"],
        rms_norm_eps=field["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": field["llama.rope.freq_base"]},
        tie_word_embeddings=is_tied,
        attn_implementation="eager",
        dtype=torch.float32,
    )
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if set(missing) - ({"lm_head.weight"} if is_tied else set()) or unexpected:
        raise ValueError(f"tensors missing: {missing}, unexpected: {unexpected}")
    return model


def make_tokenizer(field: dict[str, Any]) -> PreTrainedTokenizerFast:
    """The fast tokenizer with SmolLM's configuration: single digits first, then GPT-2's split."""
    if field["tokenizer.ggml.pre"] != "smollm":
        raise ValueError(f"this script knows SmolLM's pre-tokenizer, not {field['tokenizer.ggml.pre']!r}")
    tokens, types = field["tokenizer.ggml.tokens"], field["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    definition = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": token_id,
                "content": tokens[token_id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token_id, token_type in enumerate(types)
            if token_type == CONTROL_TOKEN_TYPE
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in field["tokenizer.ggml.merges"]],
        },
    }
    path = HERE / "tokenizer.tmp.json"
    path.write_text(json.dumps(definition), encoding="utf-8")
    try:
        return PreTrainedTokenizerFast(
            tokenizer_file=str(path),
            chat_template=field["tokenizer.chat_template"],
            clean_up_tokenization_spaces=False,
        )
    finally:
        path.unlink()


def generate_greedily(model: LlamaForCausalLM, prompt_token_ids: Sequence[int]) -> tuple[list[int], list[float]]:
    """Output token ids and, for each, the gap between the two best logits. Goes on past end-of-sequence."""
    token_ids: list[int] = []
    gaps: list[float] = []
    inputs, cache = torch.tensor([prompt_token_ids]), None
    for _ in range(NUM_OUTPUT_TOKENS):
        with torch.inference_mode():
            output = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits = output.logits[0, -1]
        best, second = torch.topk(logits, 2).values.tolist()
        token_id = int(logits.argmax())
        token_ids.append(token_id)
        gaps.append(round(best - second, 6))
        inputs = torch.tensor([[token_id]])
    return token_ids, gaps


def cases(tokenizer: PreTrainedTokenizerFast) -> Iterator[dict[str, Any]]:
    for name, text in PLAIN_PROMPTS.items():
        yield {"name": name, "text": text, "prompt_token_ids": tokenizer(text, add_special_tokens=False)["input_ids"]}
    for name, messages in CHAT_PROMPTS.items():
        rendered = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        prompt_token_ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        yield {"name": name, "messages": messages, "rendered": rendered, "prompt_token_ids": prompt_token_ids}


def write(path: Path, header: dict[str, Any], key: str, entries: list[dict[str, Any]]) -> None:
    """JSON with one line for each value of an entry, so that a difference can be read."""

    def dump(value: object) -> str:
        return json.dumps(value, ensure_ascii=True)

    def block(entry: dict[str, Any]) -> str:
        return "{\n" + ",\n".join(f"  {dump(name)}: {dump(value)}" for name, value in entry.items()) + "\n}"

    head = "".join(f"{dump(name)}: {dump(value)},\n" for name, value in header.items())
    body = ",\n".join(block(entry) for entry in entries)
    path.write_text(f"{{\n{head}{dump(key)}: [\n{body}\n]\n}}\n", encoding="utf-8")
    print(f"{path.name}: {len(entries)} entries")


def header_of(gguf_path: Path) -> dict[str, Any]:
    """What the goldens were made of and with."""
    return {
        "model_sha256": hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    gguf_path = parser.parse_args().gguf

    torch.set_num_threads(1)
    reader = GGUFReader(gguf_path)
    field = {name: value.contents() for name, value in reader.fields.items()}
    header = header_of(gguf_path)

    tokenizer = make_tokenizer(field)
    texts = [
        {"text": text, "token_ids": tokenizer(text, add_special_tokens=False)["input_ids"]} for text in TOKENIZER_TEXTS
    ]
    write(HERE / "smollm2_tokenizer.json", header, "texts", texts)

    model = load_model(reader, field)
    entries = []
    for case in cases(tokenizer):
        output_token_ids, gaps = generate_greedily(model, case["prompt_token_ids"])
        entries.append({**case, "output_token_ids": output_token_ids, "logit_gaps": gaps})
        print(f"{case['name']}: {len(case['prompt_token_ids'])} prompt tokens, smallest gap {min(gaps)}")
        print("   ", repr(tokenizer.decode(output_token_ids))[:150])
    write(HERE / "smollm2_greedy.json", header, "prompts", entries)


if __name__ == "__main__":
    main()
