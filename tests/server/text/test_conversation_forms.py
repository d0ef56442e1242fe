"""A conversation that a template refuses is told in a form that it takes, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.conversation_forms import forms_of, leaves_out_system, with_described_tools, with_early_system

LONG_ID = "call_0123456789abcdef01234567"
WRITE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "!{{ c.id }}.{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.tool_call_id or '' }}|{% endfor %}"
)
RAISE = "{{ raise_exception('no') }}{% endif %}"
SHORT_IDS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}" + RAISE + "{% endfor %}"
    "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}" + RAISE + "{% endfor %}"
)
ALTERNATING = (
    "{% for m in messages if m.role not in ('system', 'tool') and not m.tool_calls %}"
    "{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}" + RAISE + "{% endfor %}"
)
NO_SYSTEM = "{% for m in messages %}{% if m.role == 'system' %}" + RAISE + "{% endfor %}"
SYSTEM_FIRST = "{% for m in messages %}{% if m.role == 'system' and loop.index0 %}" + RAISE + "{% endfor %}"
ONE_CALL = "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}" + RAISE + "{% endfor %}"
MAPPINGS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
TEXTS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ ('' + c.function.arguments)[:0] }}"
    "{% endfor %}{% endfor %}"
)
NO_TOOLS = "{% for m in messages %}{% if m.tool_calls or m.role == 'tool' %}" + RAISE + "{% endfor %}"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def call(arguments: Any, call_id: str = LONG_ID) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(text: str, call_id: str = LONG_ID) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def told(source: str, messages: Sequence[dict[str, Any]]) -> str:
    template = ChatTemplate(source + WRITE)
    with pytest.raises(ChatTemplateError):
        template.render(messages)
    for form in forms_of(messages):
        try:
            return template.render(form)
        except ChatTemplateError:
            continue
    raise AssertionError("the template takes no form")


def test_ids_become_short_and_still_fit() -> None:
    text = told(SHORT_IDS, [user("a"), calling(call({})), result("r")])
    call_id = text.split("!")[1].split(".")[0]
    assert len(call_id) == 9
    assert text == f"user:a|assistant:!{call_id}.f{{}}|tool:r{call_id}|"


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (ALTERNATING, [user("a"), user("b")], "user:a\nb|"),
        (ALTERNATING, [{"role": "assistant", "content": "x"}, user("a")], "user:|assistant:x|user:a|"),
        (NO_SYSTEM, [system("s"), user("a")], "user:s\na|"),
        (SYSTEM_FIRST, [system("s"), system("t"), user("a"), system("u")], "system:s\n\nt|user:a\nu|"),
        (ONE_CALL, [user("a"), calling(call({}, "i"), call({}, "j")), result("r", "i"), result("t", "j")],
         "user:a|assistant:!i.f{}|tool:ri|assistant:!j.f{}|tool:tj|"),
        (MAPPINGS, [calling(call('{"a": 1', "i"))], 'assistant:!i.f{"arguments": "{\\"a\\": 1"}|'),
        (TEXTS, [calling(call({"a": 1}, "i"))], 'assistant:!i.f"{\\"a\\": 1}"|'),
        (NO_TOOLS, [user("a"), calling(call({"a": 1})), result("r")],
         'user:a|assistant:<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
         "|user:<tool_response>\nr\n</tool_response>|"),
    ],
)  # fmt: skip
def test_a_refused_conversation_is_told_as_the_template_takes_it(
    source: str, messages: list[dict[str, Any]], expected: str
) -> None:
    assert told(source, messages) == expected


def test_calls_and_results_without_ids_get_them() -> None:
    messages = [calling(call({}, ""), call({}, "")), {"role": "tool", "content": "r"}, {"role": "tool", "content": "t"}]
    first = next(forms_of(messages))
    assert [one["id"] for one in first[0]["tool_calls"]] == [message["tool_call_id"] for message in first[1:]]


def test_a_template_may_read_json_and_append_to_its_lists() -> None:
    source = (
        "{% set own = [] %}{% for m in messages %}{% set _ = own.append((m.content | fromjson).a) %}{% endfor %}"
        "{{ own | join(',') }}{{ ('[1]' | from_json)[0] }}"
    )
    assert ChatTemplate(source).render([user('{"a": 1}'), user('{"a": 2}')]) == "1,21"


def test_older_templates_know_their_variables() -> None:
    source = "{{ functions }}{{ date_string | length > 0 }}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert ChatTemplate(source).render([user("a")], tools=tools) == '[\n    {\n        "name": "f"\n    }\n]True'
    assert ChatTemplate(source).render([user("a")]) == "True"


@pytest.mark.parametrize(
    ("source", "tools", "results"),
    [
        ("{{ tools | tojson }}{% if m.role == 'tool' %}{% endif %}", True, True),
        ("{{ xml_tools }}{{ m.role == 'ipython' }}", True, True),
        ("{{ functions }}", True, False),
        ("{% if m.tool_calls %}{% endif %}", False, True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False, False),
    ],
)
def test_what_a_template_has_a_place_for(source: str, tools: bool, results: bool) -> None:
    template = ChatTemplate(source)
    assert (template.takes_tools, template.takes_results) == (tools, results)


def test_tools_join_the_system_message() -> None:
    tools = [{"type": "function", "function": {"name": "größe"}}, {"type": "function", "function": {"name": "g"}}]
    first, second = with_described_tools([user("a")], tools)
    assert (first["role"], second) == ("system", user("a"))
    assert '{"type": "function", "function": {"name": "größe"}}\n{"type"' in first["content"]
    joined = with_described_tools([system("s"), user("a")], tools)
    assert joined == [system("s\n\n" + first["content"]), user("a")]
    assert with_described_tools([system(""), user("a")], tools) == [first, second]
    assert with_described_tools([], tools) == [first]


def test_a_system_message_that_is_left_out_comes_earlier() -> None:
    messages = [user("a"), system(" late "), user("b")]
    assert leaves_out_system("a b", messages)
    assert not leaves_out_system("a late b", messages)
    assert list(with_early_system(messages)) == [[user("a\n late \nb")]] * 2
    first, second = with_early_system([system("s"), system("t"), user("a")])
    assert first == [system("s\n\nt"), user("a")]
    assert second == [user("s\n\nt\na")]
