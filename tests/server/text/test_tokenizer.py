from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import structlog

from engine.interface.errors import ModelError
from server.text.text_model import TextModel
from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenization.native_errors import TooManyTokens
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import byte_level_fields, metadata_of

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_tokenizer.json").read_bytes())
GREEDY = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_greedy.json").read_bytes())


def tiny(folder: Path, **changed: Any) -> Tokenizer:
    fields = byte_level_fields() | {f"tokenizer.ggml.{key}": value for key, value in changed.items()}
    return Tokenizer.from_gguf(metadata_of(folder, fields))


@pytest.mark.parametrize("entry", GOLDEN["texts"], ids=lambda entry: ascii(entry["text"])[:30])
def test_equals_the_reference(text_model: TextModel, entry: dict[str, Any]) -> None:
    tokenizer = text_model.tokenizer
    assert tokenizer.encode(entry["text"], add_special_tokens=True) == entry["token_ids"]
    without_control = entry["text"]
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        without_control = without_control.replace(token, "")
    assert tokenizer.decode(entry["token_ids"]) == without_control


@pytest.mark.parametrize("entry", GREEDY["prompts"], ids=lambda entry: entry["name"])
def test_prompts_equal_the_reference(text_model: TextModel, entry: dict[str, Any]) -> None:
    text = entry.get("text") or entry["rendered"]
    assert text_model.tokenizer.encode(text, add_special_tokens=False) == entry["prompt_token_ids"]


def test_default_model_facts(text_model: TextModel) -> None:
    tokenizer = text_model.tokenizer
    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == 49152
    assert tokenizer.eos_token_ids == (2, 0)
    assert (tokenizer.bos_token_id, tokenizer.add_bos_token) == (1, False)
    assert tokenizer.token_bytes[0] == tokenizer.token_bytes[2] == b""
    assert tokenizer.count("Hello, world!", add_special_tokens=True) == 4
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_merges_digits_and_control_tokens(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    token_ids = tokenizer.encode("hello w12<|im_end|>", add_special_tokens=False)
    # "1 2" is a merge, but the split of SmolLM separates digits.
    assert [tokenizer.token_text(token_id) for token_id in token_ids] == ["hello", "Ġw", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(token_ids) == "hello w12"


def test_tokens_that_contain_a_text_are_found(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)

    def found(*texts: str) -> list[str]:
        return [tokenizer.token_text(token_id) for token_id in tokenizer.token_ids_with(texts)]

    assert found("ll") == ["ll", "hell", "hello"]
    assert found(" ") == ["Ġ", "Ġw"]
    assert found("\n", "12") == ["Ċ", "12"]
    assert found("|>") == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert found("|im_end", "ello") == ["<|im_end|>", "hello"]
    assert found() == found("é") == []
    assert tokenizer.token_ids_with(["ll"]) is tokenizer.token_ids_with(("ll", "ll"))


def test_a_file_without_a_pre_tokenizer_is_said_aloud(tmp_path: Path) -> None:
    fields = byte_level_fields()
    del fields["tokenizer.ggml.pre"]
    with structlog.testing.capture_logs() as logs:
        tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, fields))
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("no_pre_tokenizer", "warning")]
    # The default separates digits from what is before them, and punctuation.
    tokens = [tokenizer.token_text(t) for t in tokenizer.encode("hello w12.", add_special_tokens=False)]
    assert tokens == ["hello", "Ġw", "12", "."]


def test_digits_stay_together_in_gpt2(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, pre="gpt-2")
    assert [tokenizer.token_text(t) for t in tokenizer.encode("12", add_special_tokens=False)] == ["12"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        # The vocabulary merges any two digits that the split does not separate.
        ("llama-bpe", ["11", "1", "1", "'", "T", "\u0120", "x"]),
        ("qwen2", ["1", "1", "1", "1", "'", "T", "\u0120", "x"]),
    ],
)
def test_digit_groups(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    fields = byte_level_fields()
    tokens, types = [*fields["tokenizer.ggml.tokens"], "11"], [*fields["tokenizer.ggml.token_type"], 1]
    merges = [*fields["tokenizer.ggml.merges"], "1 1"]
    tokenizer = tiny(tmp_path, pre=pre, tokens=tokens, token_type=types, merges=merges, add_bos_token=False)
    assert [tokenizer.token_text(t) for t in tokenizer.encode("1111'T x", add_special_tokens=False)] == pieces


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, pre="qwen2")
    assert tokenizer.decode(tokenizer.encode("cafe\u0301", add_special_tokens=False)) == "caf\u00e9"


def test_begin_of_sequence_is_added_if_the_model_wants_it(tmp_path: Path) -> None:
    for pre, add_bos_token, expected in [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ]:
        changed: dict[str, Any] = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
        tokenizer = tiny(tmp_path, pre=pre, **changed)
        assert (tokenizer.encode("hello", add_special_tokens=True)[0] == 1) is expected
        assert tokenizer.encode("hello", add_special_tokens=False)[0] != 1
        assert tokenizer.count("hello", add_special_tokens=True) == 1 + expected


def test_a_last_token_is_added_if_the_file_says_so(tmp_path: Path) -> None:
    plain = tiny(tmp_path).encode("hello", add_special_tokens=True)
    assert tiny(tmp_path, add_eos_token=True).encode("hello", add_special_tokens=True) == [*plain, 2]


def test_token_bytes_of_every_kind(tmp_path: Path) -> None:
    fields = byte_level_fields()
    tokens = [*fields["tokenizer.ggml.tokens"], "<tool> ", "unused", "plain text"]
    types = [*fields["tokenizer.ggml.token_type"], 4, 5, 1]
    tokenizer = tiny(tmp_path, tokens=tokens, token_type=types)
    assert tokenizer.token_bytes[3 : 3 + 256] == [bytes([byte]) for byte in range(256)]
    assert tokenizer.token_bytes[-3:] == [b"<tool> ", b"", b"plain text"]
    token_ids = tokenizer.encode("hello<tool> w", add_special_tokens=False)
    assert token_ids[1] == len(tokens) - 3
    assert tokenizer.decode(token_ids) == "hello<tool> w"


def test_end_tokens_come_from_roles_and_names(tmp_path: Path) -> None:
    assert tiny(tmp_path).eos_token_ids == (2, 0)
    assert tiny(tmp_path, eot_token_id=1, eom_token_id=2).eos_token_ids == (2, 1, 0)


def test_an_end_that_is_stored_as_text_has_none(tmp_path: Path) -> None:
    fields = byte_level_fields()
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    names = ["<|tool_response>", "<|tool_call>", "[EOT]"]
    user_defined, control = int(TokenType.USER_DEFINED), int(TokenType.CONTROL)
    tokenizer = tiny(tmp_path, tokens=tokens + names, token_type=[*types, user_defined, user_defined, control])
    first = len(tokens)
    assert tokenizer.eos_token_ids == (2, 0, first, first + 2)
    assert [tokenizer.decode([first + index]) for index in range(3)] == ["", "<|tool_call>", ""]
    assert tokenizer.decode_with_names([first]) == "<|tool_response>"


@pytest.mark.parametrize("names", [["<|end|>", "<|return|>", "<|call|>"], ["<|end|>", "<|flush|>", "<|calls|>"]])
def test_a_message_of_several_ends_no_answer(tmp_path: Path, names: list[str]) -> None:
    fields = byte_level_fields()
    size = len(fields["tokenizer.ggml.tokens"])

    def ends(count: int) -> tuple[int, ...]:
        tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
        return tiny(tmp_path, tokens=tokens + names[:count], token_type=types + [3] * count).eos_token_ids

    assert ends(1) == (2, 0, size)
    assert ends(2) == (2, 0, size, size + 1)
    assert ends(3) == (2, 0, size + 1, size + 2)


def test_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lone surrogate at position 1"):
        tiny(tmp_path).encode("a\ud83d", add_special_tokens=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pre": "tekkon"}, "pre-tokenizer 'tekkon'"),
        ({"merges": ["hello"]}, "the merge 'hello'"),
        ({"merges": ["h e l", "hello"]}, "the merge 'hello'"),
        ({"merges": ["h e", "l "]}, "the merge 'l '"),
        ({"merges": ["h e", " l"]}, "the merge ' l'"),
        ({"model": "bert"}, r"lacks tokenizer.ggml.unknown_token_id, and its vocabulary has no \[UNK\]"),
        ({"model": "rwkv"}, "tokenizer 'rwkv' .* is the greedy one of RWKV"),
        ({"model": "new"}, "tokenizer 'new' .* of a kind that is not known"),
    ],
)
def test_unsupported_vocabularies_are_refused_by_name(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tiny(tmp_path, **changed)


def test_a_long_text_lets_other_threads_run(text_model: TextModel) -> None:
    """A text is refused for its length only after it is tokenised, and streams must go on meanwhile.

    What is measured is processor time of this process: what others on the machine take, delays no stream of ours.
    """
    text, longest, is_done = "the tide " * 100_000, 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        before = time.process_time()
        while not is_done.is_set():
            time.sleep(0.001)
            now = time.process_time()
            longest, before = max(longest, now - before), now

    thread = threading.Thread(target=watch)
    thread.start()
    started = time.process_time()
    num_tokens = text_model.tokenizer.count(text, add_special_tokens=False)
    seconds = time.process_time() - started
    is_done.set()
    thread.join()
    assert num_tokens > 100_000
    assert longest < max(0.5 * seconds, 0.3)


def test_merges_of_unknown_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="do not fit the vocabulary"):
        tiny(tmp_path, merges=["no such"])


@pytest.mark.parametrize("text", ["tide river moon salt " * 400, "\u0301" * 2000], ids=["usual text", "strange text"])
def test_a_text_that_is_far_too_long_is_refused_by_its_beginning(text_model: TextModel, text: str) -> None:
    tokenizer = text_model.tokenizer
    with pytest.raises(TooManyTokens) as refused:
        tokenizer.refuse_far_too_long(text, 250)
    assert 500 < refused.value.num_tokens < len(tokenizer.encode(text, add_special_tokens=False))


def test_a_long_text_that_may_fit_is_not_refused_by_its_beginning(text_model: TextModel) -> None:
    text = " " * 20_000
    text_model.tokenizer.refuse_far_too_long(text, 400)
    assert len(text_model.tokenizer.encode(text, add_special_tokens=False)) < 400


def test_the_longest_token_may_be_of_few_long_characters(tmp_path: Path) -> None:
    fields = byte_level_fields()
    longest = "\U0001f600" * 30
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], longest]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 4]
    assert Tokenizer.from_gguf(metadata_of(tmp_path, fields)).max_token_bytes == 120
