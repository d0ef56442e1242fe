"""Templates in the manner of five families of models, and what transformers makes of the same messages.

The templates are ours: each has the devices of its family's one, with few words. The prompts were rendered by
`render_jinja_template` of transformers 5.23.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from server.text.chat_template import ChatTemplate, ChatTemplateError

SYSTEM = {"role": "system", "content": "  Be brief.\n"}
USER = {"role": "user", "content": "Hi <b>&'\"é"}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}
AGAIN = {"role": "user", "content": "Why?"}
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {"é": {}}}}}
CALLS = [{"function": {"name": "tide", "arguments": {"port": "Brest"}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": CALLS}
RESULT = {"role": "tool", "content": "<high>"}
DOCUMENT = {"title": "Tides", "text": "Twice a day."}

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {{- message.content | tojson if message.content is mapping else message.content }}{{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content or '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning is defined %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '<tool_call>' }}{{- tool_call.function.arguments | tojson }}{{- '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n' + message.content + '\\n' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif not (message.role == "system" and tools) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

GEMMA3 = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model
' }}{%- endif -%}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}{%- set system = messages[0]["content"] %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{%- set user_messages = rest | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + (system + "\\n\\n" if loop.last and system is defined else "") }}
        {{- message["content"] + "[/INST]" }}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"] | trim + eos_token }}
    {%- else %}{{- raise_exception("the role " + message["role"] + " is not known") }}{%- endif %}
{%- endfor %}
"""

PHI3 = """\
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
'}}{% generation %}{{ message['content'] + '<|end|>
' }}{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}"""

DOCUMENTS = """\
{%- for document in documents or [] %}[{{ loop.index }}] {{ document.title | upper }}: {{ document['text'] }}
{% endfor %}{{ messages[-1].content }}"""


class Case(NamedTuple):
    template: str
    messages: list[dict[str, Any]]
    variables: dict[str, Any]
    expected: str


CASES = {
    "llama 3": Case(
        LLAMA3,
        [SYSTEM, USER],
        {"date_string": "1 Jan 2026"},
        (
            "<s><|start_header_id|>system<|end_header_id|>\n"
            "\n"
            "Today Date: 1 Jan 2026\n"
            "\n"
            "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
            "\n"
            "Hi <b>&'\"é<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
            "\n"
        ),
    ),
    "llama 3, tools": Case(
        LLAMA3,
        [USER, CALL, RESULT],
        {"date_string": "1 Jan 2026", "tools": [TOOL]},
        (
            "<s><|start_header_id|>system<|end_header_id|>\n"
            "\n"
            "Today Date: 1 Jan 2026\n"
            "\n"
            "{\n"
            '    "type": "function",\n'
            '    "function": {\n'
            '        "name": "tide",\n'
            '        "parameters": {\n'
            '            "type": "object",\n'
            '            "properties": {\n'
            '                "é": {}\n'
            "            }\n"
            "        }\n"
            "    }\n"
            "}\n"
            "\n"
            "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
            "\n"
            'Hi <b>&\'"é<|eot_id|>{"name": "tide", "parameters": {"port": '
            '"Brest"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n'
            "\n"
            "<high><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
            "\n"
        ),
    ),
    "qwen 3": Case(
        QWEN3,
        [SYSTEM, USER, ANSWER, AGAIN],
        {"enable_thinking": False},
        (
            "<|im_start|>system\n"
            "  Be brief.\n"
            "<|im_end|>\n"
            "<|im_start|>user\n"
            "Hi <b>&'\"é<|im_end|>\n"
            "<|im_start|>assistant\n"
            "Yes.<|im_end|>\n"
            "<|im_start|>user\n"
            "Why?<|im_end|>\n"
            "<|im_start|>assistant\n"
            "<think>\n"
            "\n"
            "</think>\n"
            "\n"
        ),
    ),
    "qwen 3, tools": Case(
        QWEN3,
        [SYSTEM, USER, CALL, RESULT, RESULT],
        {"tools": [TOOL]},
        (
            "<|im_start|>system\n"
            "  Be brief.\n"
            "\n"
            "\n"
            "<tools>\n"
            '{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", '
            '"properties": {"é": {}}}}}\n'
            "</tools><|im_end|>\n"
            "<|im_start|>user\n"
            "Hi <b>&'\"é<|im_end|>\n"
            "<|im_start|>assistant\n"
            '<tool_call>{"port": "Brest"}</tool_call><|im_end|>\n'
            "<|im_start|>user\n"
            "<high>\n"
            "\n"
            "<high>\n"
            "<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    "qwen 3, no prompt": Case(
        QWEN3,
        [USER, ANSWER],
        {"add_generation_prompt": False},
        ("<|im_start|>user\nHi <b>&'\"é<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes.<|im_end|>\n"),
    ),
    "gemma 3": Case(
        GEMMA3,
        [SYSTEM, USER, ANSWER, AGAIN],
        {},
        (
            "<s><start_of_turn>user\n"
            "  Be brief.\n"
            "\n"
            "\n"
            "Hi <b>&'\"é<end_of_turn>\n"
            "<start_of_turn>model\n"
            "<think>\n"
            "hm\n"
            "</think>\n"
            "\n"
            "Yes.<end_of_turn>\n"
            "<start_of_turn>user\n"
            "Why?<end_of_turn>\n"
            "<start_of_turn>model\n"
        ),
    ),
    "mistral": Case(
        MISTRAL,
        [SYSTEM, USER, ANSWER, AGAIN],
        {},
        ("<s>[INST] Hi <b>&'\"é[/INST] <think>\nhm\n</think>\n\nYes.</s>[INST]   Be brief.\n\n\nWhy?[/INST]"),
    ),
    "mistral, tools": Case(
        MISTRAL,
        [USER],
        {"tools": [TOOL]},
        (
            '<s>[AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "tide", "parameters": {"type": '
            '"object", "properties": {"é": {}}}}}][/AVAILABLE_TOOLS][INST] Hi <b>&\'"é[/INST]'
        ),
    ),
    "phi 3": Case(
        PHI3,
        [SYSTEM, USER, ANSWER, AGAIN],
        {},
        (
            "<|system|>\n"
            "  Be brief.\n"
            "<|end|>\n"
            "<|user|>\n"
            "Hi <b>&'\"é<|end|>\n"
            "<|assistant|>\n"
            "<think>\n"
            "hm\n"
            "</think>\n"
            "\n"
            "Yes.<|end|>\n"
            "<|user|>\n"
            "Why?<|end|>\n"
            "<|assistant|>\n"
        ),
    ),
    "phi 3, no prompt": Case(
        PHI3,
        [USER, ANSWER],
        {"add_generation_prompt": False},
        ("<|user|>\nHi <b>&'\"é<|end|>\n<|assistant|>\n<think>\nhm\n</think>\n\nYes.<|end|>\n</s>"),
    ),
    "documents": Case(
        DOCUMENTS,
        [USER],
        {"documents": [DOCUMENT, DOCUMENT]},
        ("[1] TIDES: Twice a day.\n[2] TIDES: Twice a day.\nHi <b>&'\"é"),
    ),
    "no documents": Case(
        DOCUMENTS,
        [USER],
        {},
        ("Hi <b>&'\"é"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_prompt_is_that_of_transformers(name: str) -> None:
    case = CASES[name]
    template = ChatTemplate(case.template, bos_token="<s>", eos_token="</s>")
    assert template.render(case.messages, **case.variables) == case.expected


def test_the_day_is_todays_where_nobody_names_one() -> None:
    before = datetime.now(tz=UTC).astimezone()
    text = ChatTemplate(LLAMA3).render([USER])
    after = datetime.now(tz=UTC).astimezone()
    assert text.split("Today Date: ")[1].split("\n")[0] in {day.strftime("%d %b %Y") for day in (before, after)}


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (GEMMA3, [USER, AGAIN], "roles must alternate"),
        (LLAMA3, [USER, CALL | {"tool_calls": [*CALLS, *CALLS]}], "one call at a time"),
        (MISTRAL, [USER, RESULT], "the role tool is not known"),
    ],
)
def test_a_template_refuses_in_its_own_words(template: str, messages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"the chat template says: {words}"):
        ChatTemplate(template).render(messages)


def test_templates_for_tools_and_documents_have_precedence() -> None:
    template = ChatTemplate(
        "plain", variants={"tool_use": "{{ tools | length }} tools", "rag": "{{ documents[0].title }}"}
    )
    assert template.render([USER]) == template.render([USER], tools=None, documents=None) == "plain"
    assert template.render([USER], tools=[TOOL], documents=[DOCUMENT]) == "1 tools"
    assert template.render([USER], documents=[DOCUMENT]) == "Tides"
    only_rag = ChatTemplate("plain {{ tools | length }}", variants={"rag": "{{ documents[0].title }}"})
    assert only_rag.render([USER], tools=[TOOL]) == "plain 1"
    with pytest.raises(ChatTemplateError, match="broken"):
        ChatTemplate("plain", variants={"rag": "{% if %}"})


def test_what_is_set_within_generation_blocks_stays_there() -> None:
    template = ChatTemplate("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}")
    assert template.render([USER]) == "21"
