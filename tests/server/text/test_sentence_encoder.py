"""What the files of sentence-transformers say of a model's embeddings, and of its labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.interface.errors import ModelError
from engine.interface.types import Pooling, Poolings
from engine.weights.formats.model_folder import ModelFolder
from server.text.label_head import HeadActivation, LabelHead, read_label_head
from server.text.sentence_encoder import read_sentence_encoder, sentence_encoder_of_gguf
from tests.model_folders import write_json

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
MEAN = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def folder(
    path: Path, modules: Any = (TRANSFORMER, POOLING, NORMALIZE), pooling: Any = MEAN, config: Any = None, **files: Any
) -> ModelFolder:
    write_json(path / "config.json", config or {})
    if modules is not None:
        write_json(path / "modules.json", list(modules) if isinstance(modules, tuple) else modules)
    (path / "1_Pooling").mkdir()
    write_json(path / "1_Pooling" / "config.json", pooling)
    for name, content in files.items():
        write_json(path / f"{name}.json", content)
    return ModelFolder(path)


def test_a_folder_without_modules_says_nothing(tmp_path: Path) -> None:
    assert read_sentence_encoder(folder(tmp_path, modules=None)) is None


def test_pooling_limit_and_prompts(tmp_path: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    sentences = read_sentence_encoder(
        folder(
            tmp_path,
            sentence_bert_config={"max_seq_length": 256},
            config_sentence_transformers={"prompts": prompts, "default_prompt_name": "passage"},
        )
    )
    assert sentences is not None
    assert (sentences.pooling, sentences.max_tokens, sentences.default_prompt) == (Pooling.MEAN, 256, "passage: ")
    assert sentences.prompt_of_input_type("search_query") == "query: "
    assert sentences.prompt_of_input_type("search_document") == "passage: "
    assert sentences.prompt_of_input_type("classification") == ""
    assert not sentences.takes_dimensions


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True}, Pooling.CLS),
        ({"pooling_mode_lasttoken": True}, Pooling.LAST),
        ({"pooling_mode": "mean"}, Pooling.MEAN),
        ({"pooling_mode": "lasttoken", "pooling_mode_mean_tokens": True}, Pooling.LAST),  # as newer releases read it
        ({"pooling_mode_max_tokens": True}, Pooling.MAX),
        ({"pooling_mode_weightedmean_tokens": True}, Pooling.WEIGHTED_MEAN),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, Pooling.MEAN_SQRT_LEN),
        ({"pooling_mode": ["weightedmean"]}, Pooling.WEIGHTED_MEAN),
        ({"pooling_mode": ["mean", "cls"]}, (Pooling.MEAN, Pooling.CLS)),
        ({**MEAN, "pooling_mode_max_tokens": True}, (Pooling.MAX, Pooling.MEAN)),
        ({}, Pooling.MEAN),
    ],
)
def test_poolings(tmp_path: Path, pooling: dict[str, Any], expected: Poolings) -> None:
    sentences = read_sentence_encoder(folder(tmp_path, pooling=pooling))
    assert sentences is not None
    assert sentences.pooling == expected
    assert sentences.pools_prompts


def test_prompts_may_be_left_out_of_the_pooling(tmp_path: Path) -> None:
    sentences = read_sentence_encoder(folder(tmp_path, pooling={**MEAN, "include_prompt": False}))
    assert sentences is not None
    assert not sentences.pools_prompts


@pytest.mark.parametrize(
    ("limits", "of_tokenizer", "expected"),
    [
        ({"max_seq_length": 256}, 512, 256),
        ({"max_seq_length": None}, 512, 512),
        (None, 512, 512),
        (None, 10**30, None),  # which transformers writes for none
        (None, None, None),
    ],
)
def test_the_limit_of_a_text_is_the_tokenizers_where_there_is_no_other(
    tmp_path: Path, limits: Any, of_tokenizer: int | None, expected: int | None
) -> None:
    files = {} if limits is None else {"sentence_bert_config": limits}
    sentences = read_sentence_encoder(folder(tmp_path, tokenizer_config={"model_max_length": of_tokenizer}, **files))
    assert sentences is not None
    assert sentences.max_tokens == expected


@pytest.mark.parametrize(
    ("config", "takes", "dimensions"),
    [({}, False, ()), ({"is_matryoshka": True}, True, ()), ({"matryoshka_dimensions": [4, 8]}, True, (4, 8))],
)
def test_shorter_embeddings(tmp_path: Path, config: Any, takes: bool, dimensions: tuple[int, ...]) -> None:
    sentences = read_sentence_encoder(folder(tmp_path, config=config))
    assert sentences is not None
    assert (sentences.takes_dimensions, sentences.dimensions) == (takes, dimensions)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modules": {"a": 1}}, "must list modules"),
        ({"modules": []}, "lists no module"),
        ({"modules": (TRANSFORMER,)}, "must begin with Transformer"),
        ({"modules": (TRANSFORMER, POOLING, {**NORMALIZE, "type": "models.WordWeights"})}, "the module WordWeights"),
        ({"modules": (TRANSFORMER, {**POOLING, "path": "../x"})}, "must list modules"),
        ({"pooling": {"pooling_mode": "median"}}, "pooling_mode"),
        ({"pooling": {"pooling_mode": ["mean", 1]}}, "pooling_mode"),
        ({"pooling": {"pooling_mode": []}}, "pooling_mode"),
        ({"config": {"matryoshka_dimensions": [0]}}, "matryoshka_dimensions"),
        ({"config_sentence_transformers": {"default_prompt_name": "x"}}, "default_prompt_name"),
        ({"config_sentence_transformers": {"prompts": {"a": 1}}}, "must be a string"),
        ({"sentence_bert_config": {"max_seq_length": 1}}, "max_seq_length"),
        ({"sentence_bert_config": {"transformer_task": "fill-mask"}}, "it must be feature-extraction"),
        ({"sentence_bert_config": {"query_length": 32}}, "query_length is 32; this is not served"),
    ],
)
def test_what_is_not_served_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_sentence_encoder(folder(tmp_path, **changes))


def test_poolings_of_gguf_files() -> None:
    assert [sentence_encoder_of_gguf(kind).pooling for kind in (None, 1, 2, 3)] == [
        Pooling.MEAN,
        Pooling.MEAN,
        Pooling.CLS,
        Pooling.LAST,
    ]
    with pytest.raises(ModelError, match="pooling_type is 9"):
        sentence_encoder_of_gguf(9)


CROSS = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}


@pytest.mark.parametrize(
    ("config", "labels", "activation"),
    [
        (CROSS, ("LABEL_0",), HeadActivation.SIGMOID),
        (
            {**CROSS, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            ("LABEL_0",),
            HeadActivation.IDENTITY,
        ),
        ({**CROSS, "id2label": {"0": "no", "1": "yes"}}, ("no", "yes"), HeadActivation.SOFTMAX),
        (
            {**CROSS, "id2label": {"0": "a", "1": "b"}, "problem_type": "multi_label_classification"},
            ("a", "b"),
            HeadActivation.SIGMOID,
        ),
        ({"architectures": ["RobertaForSequenceClassification"]}, ("LABEL_0", "LABEL_1"), HeadActivation.SOFTMAX),
    ],
)
def test_labels_and_activation(tmp_path: Path, config: Any, labels: Any, activation: HeadActivation) -> None:
    assert read_label_head(folder(tmp_path, config=config)) == LabelHead(labels, activation)


def test_numbers_of_a_regression_are_shown_as_they_are(tmp_path: Path) -> None:
    head = read_label_head(folder(tmp_path, config=CROSS | {"problem_type": "regression"}))
    assert head is not None
    scores = np.array([[3.5], [0.0]], np.float32)
    assert head.activate(scores, are_classes=True).tolist() == scores.tolist()
    assert head.activate(scores)[1, 0] == 0.5, "of a pair, as sentence-transformers and vLLM have it"


def test_other_models_have_no_labels(tmp_path: Path) -> None:
    assert read_label_head(folder(tmp_path, config={"architectures": ["BertModel"], "id2label": {"0": "a"}})) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id2label": {"1": "a"}}, "id2label"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.ReLU"}}, "must be Identity, Sigmoid or Softmax"),
    ],
)
def test_heads_that_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_label_head(folder(tmp_path, config=CROSS | change))


def test_activations() -> None:
    scores = np.array([[-800.0, 0.0], [800.0, 0.0]], np.float32)
    assert LabelHead((), HeadActivation.SIGMOID).activate(scores).tolist() == [[0.0, 0.5], [1.0, 0.5]]
    assert LabelHead((), HeadActivation.SOFTMAX).activate(scores).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert LabelHead((), HeadActivation.IDENTITY).activate(scores).tolist() == scores.tolist()
