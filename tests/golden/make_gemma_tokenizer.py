"""Makes `gemma3_tokenizer.json` with SentencePiece, from the pieces in the GGUF file of Gemma 3 270M.

In a virtual environment of its own, from the root of the project:

    python -m venv goldenv
    goldenv/bin/pip install sentencepiece protobuf gguf
    PYTHONPATH=. goldenv/bin/python tests/golden/make_gemma_tokenizer.py MODEL.gguf

Nothing of the server is imported: the model is written with the message that SentencePiece itself defines.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import sentencepiece
from gguf import GGUFReader

from tests.server.support.mixed_lines import SCRIPTS, lines_of

HERE = Path(__file__).parent
NUM_SHOWN = 3  # lines of each script whose ids are kept, so that a difference can be looked at
BPE, UNKNOWN, USER_DEFINED = 2, 2, 4


def load(path: Path) -> sentencepiece.SentencePieceProcessor:
    from sentencepiece import sentencepiece_model_pb2

    fields = GGUFReader(path).fields
    tokens, scores, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "scores", "token_type"))
    unknown_id = fields["tokenizer.ggml.unknown_token_id"].contents()
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.unk_id = unknown_id
    model.trainer_spec.bos_id = fields["tokenizer.ggml.bos_token_id"].contents()
    model.trainer_spec.eos_id = fields["tokenizer.ggml.eos_token_id"].contents()
    model.trainer_spec.pad_id = fields["tokenizer.ggml.padding_token_id"].contents()
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = fields["tokenizer.ggml.add_space_prefix"].contents()
    model.normalizer_spec.remove_extra_whitespaces = False
    for token_id, (token, score, token_type) in enumerate(zip(tokens, scores, types, strict=True)):
        piece = model.pieces.add()
        # The converter has written real spaces where the model's own file has marks.
        piece.piece = token.replace(" ", "\u2581") if token_type == USER_DEFINED else token
        piece.score = score
        piece.type = UNKNOWN if token_id == unknown_id else token_type
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def entry(processor: sentencepiece.SentencePieceProcessor, script: str) -> dict[str, Any]:
    token_ids = [processor.encode(line) for line in lines_of(script)]
    digest = hashlib.sha256(json.dumps(token_ids).encode()).hexdigest()
    return {"script": script, "sha256_of_ids": digest, "first": token_ids[:NUM_SHOWN]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    path = parser.parse_args().model
    processor = load(path)
    golden = {
        "gguf_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "sentencepiece": sentencepiece.__version__,
        "scripts": [entry(processor, script) for script in SCRIPTS],
    }
    (HERE / "gemma3_tokenizer.json").write_text(json.dumps(golden) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
