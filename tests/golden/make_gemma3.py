"""Makes gemma3_greedy.json: greedy outputs of Gemma 3 270M, by PyTorch and transformers.

In the virtual environment of make_goldens.py, with sentencepiece beside:

    goldenv/bin/pip install sentencepiece
    goldenv/bin/python tests/golden/make_gemma3.py MODEL.gguf

The weights are dequantised to float32 and run by transformers' Gemma3ForCausalLM. The prompts are tokenised by
SentencePiece, from a model that is rebuilt of the file's pieces, scores and types. Nothing of the project is
imported, so that the goldens are an independent witness.
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from golden_inputs import PLAIN_PROMPTS
from make_goldens import HERE, generate_greedily, header_of, transformers_name, write
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}

MORE_PROMPTS = {
    "question": "Q: Why do cats purr?\nA:",
    "recipe": "Ingredients for a simple loaf of bread:\n- 500 g of flour\n-",
    "dialogue": '"Where have you been?" she asked.\n\n"',
    "letter": "Dear Professor Okonkwo,\n\nThank you very much for",
    "html": "<!DOCTYPE html>\n<html>\n<head>\n  <title>",
    "rust": "fn main() {\n    let numbers = vec![3, 1, 2];\n",
    "table": "| planet | moons |\n|---|---|\n| Mercury | 0 |\n| Venus | 0 |\n| Earth |",
    "french": "Le petit prince regarda les étoiles et",
    "japanese": "昔々、あるところに",
    "hindi": "एक समय की बात है,",
    "spanish": "La receta de mi abuela empieza con",
    "repetition": "one two three one two three one two three one",
}


def load_model(reader: GGUFReader, field: dict[str, Any]) -> Gemma3ForCausalLM:
    """The model in float32, every tensor accounted for."""
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if "_norm." in tensor.name:
            values = values - 1  # a GGUF stores 1 + w, transformers adds the 1 itself
        weights[transformers_name(tensor.name, TENSORS)] = torch.from_numpy(values.copy())
    config = Gemma3TextConfig(
        vocab_size=len(field["tokenizer.ggml.tokens"]),
        hidden_size=field["gemma3.embedding_length"],
        intermediate_size=field["gemma3.feed_forward_length"],
        num_hidden_layers=field["gemma3.block_count"],
        num_attention_heads=field["gemma3.attention.head_count"],
        num_key_value_heads=field["gemma3.attention.head_count_kv"],
        head_dim=field["gemma3.attention.key_length"],
        query_pre_attn_scalar=field["gemma3.attention.key_length"],
        max_position_embeddings=field["gemma3.context_length"],
        rms_norm_eps=field["gemma3.attention.layer_norm_rms_epsilon"],
        sliding_window=field["gemma3.attention.sliding_window"],
        rope_theta=field["gemma3.rope.freq_base"],
        rope_local_base_freq=10000.0,
        attn_implementation="eager",
        dtype=torch.float32,
    )
    model = Gemma3ForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if set(missing) != {"lm_head.weight"} or unexpected:
        raise ValueError(f"tensors missing: {missing}, unexpected: {unexpected}")
    return model


def make_tokenizer(field: dict[str, Any]) -> SentencePieceProcessor:
    """SentencePiece's byte-pair encoding, whose numbers of piece types are those of GGUF files."""
    proto = sentencepiece_model_pb2.ModelProto()
    pieces = zip(
        field["tokenizer.ggml.tokens"], field["tokenizer.ggml.scores"], field["tokenizer.ggml.token_type"], strict=True
    )
    for piece, score, kind in pieces:
        # GGUF files write the spaces of pieces that users have defined as spaces; SentencePiece escapes all alike.
        proto.pieces.add(piece=piece.replace(" ", "\u2581"), score=score, type=kind)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type = trainer.BPE
    trainer.vocab_size = len(proto.pieces)
    trainer.byte_fallback = True
    trainer.pad_piece, trainer.eos_piece, trainer.bos_piece, trainer.unk_piece = "<pad>", "<eos>", "<bos>", "<unk>"
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = range(4)
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = field["tokenizer.ggml.add_space_prefix"]
    normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    return SentencePieceProcessor(model_proto=proto.SerializeToString())


def cases(tokenizer: SentencePieceProcessor) -> Iterator[dict[str, Any]]:
    """All prompts begin with <bos>."""
    for name, text in {**PLAIN_PROMPTS, **MORE_PROMPTS}.items():
        yield {"name": name, "text": text, "prompt_token_ids": [tokenizer.bos_id(), *tokenizer.encode(text)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    gguf_path = parser.parse_args().gguf

    torch.set_num_threads(1)
    reader = GGUFReader(gguf_path)
    field = {name: value.contents() for name, value in reader.fields.items()}
    model, tokenizer = load_model(reader, field), make_tokenizer(field)
    entries = []
    for case in cases(tokenizer):
        output_token_ids, gaps = generate_greedily(model, case["prompt_token_ids"])
        entries.append({**case, "output_token_ids": output_token_ids, "logit_gaps": gaps})
        print(f"{case['name']}: {len(case['prompt_token_ids'])} prompt tokens, smallest gap {min(gaps)}", flush=True)
        print("   ", repr(tokenizer.decode(output_token_ids))[:150], flush=True)
    write(HERE / "gemma3_greedy.json", header_of(gguf_path), "prompts", entries)


if __name__ == "__main__":
    main()
