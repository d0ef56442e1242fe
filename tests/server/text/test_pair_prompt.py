"""How decoders are shown queries and documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from sampling.host.params import InvalidParameter
from server.text.chat_template import ChatTemplate
from server.text.label_head import HeadActivation, LabelHead
from server.text.pair_prompt import QWEN3, AnswerTokens, PairPrompt, cut_text, pair_prompt_of, read_answer_tokens
from server.text.pair_prompt import usual_answer_tokens as usual
from server.text.text_model import TextModel
from server.text.tokenization.control_tokens import ControlTokens
from server.text.tokenizer import Tokenizer
from tests.fakes.text_model import TURN, FakeTokenizer
from tests.model_folders import write_json
from tests.server.support.gguf_files import byte_level_fields, write_gguf


class TurnTokenizer(FakeTokenizer):
    control = ControlTokens({"<t>": TURN})


TOKENIZER = cast(Tokenizer, TurnTokenizer())
PROMPT = PairPrompt.parse("<t>q: {query} d: {document}<t>!")


def test_a_query_and_a_document_write_no_control_tokens() -> None:
    text = PROMPT.encode(TOKENIZER, "<t>", "a<t>", 100, is_cut=False)
    assert text.token_ids == [TURN, *b"q: <t> d: a<t>", TURN, *b"!"]
    assert text.second_start == 0


@pytest.mark.parametrize("most", [12, 15, 200])
def test_documents_are_cut_so_that_the_pair_fits(most: int) -> None:
    document = "é" * 50
    text = PROMPT.encode(TOKENIZER, "q", document, most, is_cut=True)
    num_bytes = min(100, (most - 11) // 2 * 2)
    assert text.token_ids == [TURN, *b"q: q d: ", *document.encode()[:num_bytes], TURN, *b"!"]


def test_a_query_that_leaves_no_room_is_cut_too() -> None:
    text = PROMPT.encode(TOKENIZER, "q" * 1000, "d", 15, is_cut=True)
    assert text.token_ids == [TURN, *b"q: qqqq d: d", TURN, *b"!"]


def test_a_prompt_that_is_longer_than_what_is_allowed() -> None:
    with pytest.raises(InvalidParameter, match="cut to 9 tokens, and the model's prompt for a pair alone has 10"):
        PROMPT.encode(TOKENIZER, "q", "d", 9, is_cut=True)


def test_the_beginning_of_a_text() -> None:
    assert [cut_text(TOKENIZER, "aéb", most) for most in range(5)] == ["", "a", "a", "aé", "aéb"]


@pytest.mark.parametrize("template", ["{query}", "{document} {query}", ""])
def test_templates_without_both_places_are_refused(template: str) -> None:
    with pytest.raises(ModelError, match=r"must have \{query\} and then \{document\}"):
        PairPrompt.parse(template)


def test_a_chat_template_with_queries_and_documents() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}!")
    assert pair_prompt_of(template) == QWEN3
    template = ChatTemplate("{# document #}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}!")
    assert pair_prompt_of(template) == PairPrompt("[query]", "[document]", "!")
    assert pair_prompt_of(ChatTemplate("{{ documents }}")) == QWEN3


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"true_token_id": 9, "false_token_id": 2}, AnswerTokens(9, 2)), ({"true_token_id": 9}, None), (None, None)],
)
def test_answers_of_a_folder(tmp_path: Path, config: Any, expected: AnswerTokens | None) -> None:
    write_json(tmp_path / "config.json", {})
    assert read_answer_tokens(ModelFolder(tmp_path)) is None
    write_json(tmp_path / "modules.json", [{"path": "1_LogitScore", "type": "modules.logit_score.LogitScore"}])
    (tmp_path / "1_LogitScore").mkdir()
    if config is not None:
        write_json(tmp_path / "1_LogitScore" / "config.json", config)
    if expected is None:
        with pytest.raises(ModelError, match=r"false_token_id|has no 1_LogitScore/config\.json"):
            read_answer_tokens(ModelFolder(tmp_path))
    else:
        assert read_answer_tokens(ModelFolder(tmp_path)) == expected


def test_a_reranker_in_a_gguf_file(tmp_path: Path) -> None:
    fields = byte_level_fields() | {
        "tokenizer.chat_template.rerank": "q {query} d {document}!",
        "llama.classifier.output_labels": ["yes", "no"],
        "llama.pooling_type": 4,
        "tokenizer.ggml.seperator_token_id": 1,
        "tokenizer.ggml.add_eos_token": True,
    }
    model = TextModel.load(write_gguf(tmp_path / "model.gguf", fields))
    assert model.pairs == PairPrompt("q ", " d ", "!")
    assert model.head == LabelHead(("yes", "no"), HeadActivation.SOFTMAX)
    assert model.sentences is None
    assert model.tokenizer.between_ids == (1,)


def test_answers_of_a_vocabulary_without_such_tokens() -> None:
    assert usual(TOKENIZER) is None
