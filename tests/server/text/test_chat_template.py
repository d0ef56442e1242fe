from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.text_model import TextModel

GREEDY = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_greedy.json").read_bytes())
CHATS = [entry for entry in GREEDY["prompts"] if "messages" in entry]
USER = {"role": "user", "content": "Hi"}

SIMPLE = """\
{{ bos_token }}{% for message in messages %}
    [{{ message.role }}] {{ message.content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
[assistant] {% endif %}"""


def simple() -> ChatTemplate:
    return ChatTemplate(SIMPLE, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("entry", CHATS, ids=lambda entry: entry["name"])
def test_the_default_model_renders_as_the_reference(text_model: TextModel, entry: dict[str, Any]) -> None:
    assert text_model.chat_template is not None
    text = text_model.chat_template.render(entry["messages"])
    assert text == entry["rendered"]
    assert text_model.tokenizer.encode(text, add_special_tokens=False) == entry["prompt_token_ids"]


def test_blocks_are_trimmed_and_tokens_known() -> None:
    assert simple().render([USER]) == "<s>    [user] Hi</s>\n[assistant] "
    assert simple().render([USER], add_generation_prompt=False) == "<s>    [user] Hi</s>\n"


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": parts}]) == "one\ntwo"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {}}], "type 'image_url' is not supported"),
        ([{"type": "text"}], "type 'text' is not supported"),
        ([1], "type 'int' is not supported"),
        (5, "content is int"),
    ],
)
def test_content_that_is_not_text_is_refused(content: object, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        simple().render([{"role": "user", "content": content}])


def test_continue_final_message_leaves_it_open() -> None:
    messages = [USER, {"role": "assistant", "content": "Well, "}]
    text = simple().render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "<s>    [user] Hi</s>\n    [assistant] Well, "
    assert messages[1]["content"] == "Well, "


def test_continue_final_message_works_with_a_repeated_text() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
    text = simple().render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("[assistant] a")


@pytest.mark.parametrize(
    ("template", "last", "generate", "message"),
    [
        (SIMPLE, USER, True, "cannot both be true"),
        (SIMPLE, {"role": "assistant", "content": None}, False, "needs a last message with text"),
        ("nothing", USER, False, "leaves out the last message"),
    ],
)
def test_impossible_continuations_are_refused(
    template: str, last: dict[str, Any], generate: bool, message: str
) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(template).render([last], add_generation_prompt=generate, continue_final_message=True)


def test_keywords_reach_the_template() -> None:
    template = ChatTemplate("{{ tools | length }} {{ enable_thinking }}")
    assert template.render([USER], tools=[{}, {}], enable_thinking=False) == "2 False"


def test_tojson_is_for_prompts_not_for_html() -> None:
    template = ChatTemplate("{{ value | tojson }}|{{ value | tojson(indent=1) }}")
    assert template.render([USER], value={"a": "<é&'>"}) == '{"a": "<é&\'>"}|{\n "a": "<é&\'>"\n}'


def test_strftime_now() -> None:
    before = datetime.now(tz=UTC).astimezone().year
    year = int(ChatTemplate("{{ strftime_now('%Y') }}").render([USER]))
    assert before <= year <= datetime.now(tz=UTC).astimezone().year


def test_loop_controls() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert template.render([USER, USER, USER]) == "Hi"


def test_the_template_may_refuse_with_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatTemplateError, match="the chat template says: roles must alternate"):
        template.render([USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['content'] + 1 }}",
        "{{ messages[0].missing.deeper }}",
        "{{ 1 // 0 }}",
        "{{ range(10 ** 9) | list }}",
        "{{ {}.pop('x') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_is_one_error(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="the chat template"):
        ChatTemplate(source).render([USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_the_sandbox_refuses_unsafe_templates(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render([USER])


def test_a_broken_template_is_named_with_its_line() -> None:
    with pytest.raises(ChatTemplateError, match="broken at line 2"):
        ChatTemplate("fine\n{% for %}")


def test_no_messages_are_refused() -> None:
    with pytest.raises(ChatTemplateError, match="messages is empty"):
        simple().render([])


@pytest.mark.parametrize(
    "source",
    ["{{" + "(" * 5000, "{% if a %}" * 500 + "{% endif %}" * 500, "{{" + "not " * 5000 + "a }}", "{% break %}",
     "{% for a in b %}" * 30 + "{% endfor %}" * 30, "{{ " + "9" * 5000 + " }}"],
)  # fmt: skip
def test_a_template_beyond_pythons_limits_is_refused(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"the chat template (cannot be compiled|is broken)"):
        ChatTemplate(source)


def test_reasoning_has_the_name_that_the_template_reads() -> None:
    """Whatever a client calls it; gpt-oss's template takes no text beside the reasoning of a call."""
    source = (
        "{% for message in messages %}"
        "{% if message.content and message.thinking and message.tool_calls %}{{ raise_exception('both') }}{% endif %}"
        "({{ message.thinking }}|{{ message.content }})"
        "{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [
        {"role": "assistant", "reasoning_content": "a", "content": "b"},
        {"role": "assistant", "reasoning": "c", "content": None, "tool_calls": [call]},
        {"role": "assistant", "reasoning_content": "d", "content": "e", "tool_calls": [call]},
        {"role": "assistant", "thinking": "f", "reasoning_content": "g", "content": "h"},
        {"role": "assistant", "content": "i"},
    ]
    assert ChatTemplate(source).render(messages) == "(a|b)(c|None)(d\ne|)(f|h)(|i)"


def test_a_template_that_reads_only_parts_gets_them() -> None:
    """SmolVLM's walks over the characters of a text, and writes none of them."""
    source = (
        "{% for m in messages %}{{ m['role'] }}{% if m['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
        "{% for line in m['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %};"
        "{% endfor %}"
    )
    template = ChatTemplate(source)
    template.detect_content_format()
    assert template.render([USER, {"role": "assistant", "content": "Yes"}]) == "user: Hi;assistant: Yes;"
    assert template.render([USER], False, True) == "user: Hi"
    others = simple()
    others.detect_content_format()
    assert others.render([USER]) == simple().render([USER])
