"""The tables of docs/protocol.md are those of the models that validate requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.api.openapi.markdown import fill_tables

PROTOCOL = Path(__file__).parents[4] / "docs" / "protocol.md"


def test_the_tables_of_the_protocol_are_up_to_date() -> None:
    text = PROTOCOL.read_text()
    assert fill_tables(text) == text, "run python -m server.api.openapi.markdown docs/protocol.md"


@pytest.mark.parametrize(
    "row",
    [
        "| `temperature` |  | 0 to 2 | 1 | Divides the logits; 0 always takes the most probable token. See "
        "[Defaults of a model](#defaults-of-a-model). |",
        "| `top_p` |  | above 0, at most 1 | 1 | Only the most probable tokens that together have this probability "
        "remain; 1 keeps all. |",
        "| `echo` | completions | boolean | `false` |",
        "| `logprobs` | chat | boolean | `false` |",
        "| `logprobs` | completions | 0 to 20 | none |",
        "| `max_tokens` | from 1 | required |",
        "| `POST /v1/chat/completions` |",
        "| `POST /admin/sleep` | `model`, `drop_weights` |",
    ],
)
def test_values_and_defaults_follow_from_the_models(row: str) -> None:
    assert f"\n{row}" in PROTOCOL.read_text()


def test_only_what_is_between_the_markers_is_replaced() -> None:
    text = "a\n<!-- generated: detokenize -->\nold\n<!-- end -->\nb\n<!-- end -->\n"
    filled = fill_tables(text)
    assert filled.startswith("a\n<!-- generated: detokenize -->\n| parameter |")
    assert filled.endswith("|\n<!-- end -->\nb\n<!-- end -->\n")
    assert "old" not in filled


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        fill_tables("<!-- generated: nothing -->\n<!-- end -->\n")
