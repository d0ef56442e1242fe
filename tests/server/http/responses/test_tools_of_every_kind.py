"""Tools that are not functions: what the model is told of them, and how their calls come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.api.responses.input_items import sealed
from tests.server.conftest import RunningServer
from tests.server.http.responses.conftest import TEMPLATE, ask, stream, text_of
from tests.server.support.responses_judge import judge

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SPACE = {
    "type": "namespace",
    "name": "mcp__node",
    "description": "d",
    "tools": [FUNCTION, {"type": "custom", "name": "g"}],
}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "go " /[a-z]+/ "\\n"'}
CUSTOM = {"type": "custom", "name": "walk", "description": "Walks.", "format": GRAMMAR}
SERVERS = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "computer", "tool_search", "new")


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


IN_SPACE = {"name": "f", "namespace": "mcp__node"}
SHELL_ACTION = {"commands": ["ls", "pwd"], "timeout_ms": None, "max_output_length": None}
EXEC = {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5, "user": None, "working_directory": None}
TEXT_PATCH = {"type": "custom", "name": "apply_patch"}


@pytest.mark.parametrize(
    ("tools", "said", "item"),
    [
        ([SPACE], calling("mcp__node__f", a=1), {"type": "function_call", **IN_SPACE, "arguments": '{"a": 1}'}),
        (
            [{**SPACE, "tools": [FUNCTION]}],
            calling("f"),  # as models write it that forget the namespace
            {"type": "function_call", **IN_SPACE, "arguments": "{}"},
        ),
        ([SPACE, FUNCTION], calling("f"), {"type": "function_call", "name": "f", "arguments": "{}"}),
        (
            [SPACE],
            calling("mcp__node__g", input="é\n"),
            {"type": "custom_tool_call", **IN_SPACE, "name": "g", "input": "é\n"},
        ),
        ([CUSTOM], calling("walk", input="go on\n"), {"type": "custom_tool_call", "name": "walk", "input": "go on\n"}),
        (
            [{"type": "local_shell"}],
            calling("local_shell", command=["ls", "-l"], timeout_ms=5),
            {"type": "local_shell_call", "action": EXEC},
        ),
        (
            [{"type": "shell", "environment": {"type": "local"}}],
            calling("shell", commands=["ls", "pwd"]),
            {"type": "shell_call", "action": SHELL_ACTION},
        ),
        (
            [{"type": "apply_patch"}],
            calling("apply_patch", type="create_file", path="a", diff="+b"),
            {"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a", "diff": "+b"}},
        ),
        (
            [TEXT_PATCH, {"type": "apply_patch"}],
            calling("apply_patch_2", type="delete_file", path="a"),
            {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
        ),
    ],
)
async def test_a_call_is_the_item_of_its_kind(start_saying, tools: list[Any], said: str, item: dict[str, Any]) -> None:
    server = await start_saying(said)
    events = await stream(server, input="x", tools=tools)
    (streamed,) = judge(events)["output"]
    (whole,) = (await ask(server, input="x", tools=tools))["output"]
    for found in (streamed, whole):
        assert {name: part for name, part in found.items() if name not in ("id", "call_id", "status")} == item
        assert (found["status"], found["call_id"][:5]) == ("completed", "call_")
    kinds = [event["type"] for event in events]
    if item["type"] == "custom_tool_call":
        deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
        assert "".join(deltas) == item["input"]
        assert len(deltas) > 1
        assert "response.custom_tool_call_input.done" in kinds
        assert "response.function_call_arguments.delta" not in kinds


async def test_a_custom_tools_grammar_is_enforced_while_sampling(start_saying) -> None:
    for choice in ("auto", "required", {"type": "custom", "name": "walk"}):
        good, bad = ({"name": "walk", "arguments": {"input": text}} for text in ("go on\n", "stay\n"))
        for call, is_right in ((good, True), (bad, False)):
            said = json.dumps([call]) if choice != "auto" else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
            server = await start_saying(said)
            response = await ask(server, input="x", tools=[CUSTOM], tool_choice=choice)
            assert (response["status"] == "completed") is is_right, response["error"]


async def test_the_prompt_shows_a_custom_tool_as_a_function_with_its_grammar(start_saying) -> None:
    server = await start_saying(
        template="{{ tools[0].function.description }}!{{ tools[0].function.parameters | tojson }}"
    )
    description, _, parameters = text_of(await ask(server, input="x", tools=[CUSTOM])).partition("!")
    assert description == f"Walks.\n\nThe input must match this Lark grammar:\n{GRAMMAR['definition']}"
    assert json.loads(parameters)["properties"] == {"input": {"type": "string"}}


async def test_tools_of_servers_are_left_out_and_named(server: RunningServer) -> None:
    tools = [
        FUNCTION,
        *({"type": kind, "some": 1} for kind in SERVERS),
        {"type": "shell", "environment": {"type": "container_auto"}},
    ]
    async with server.http.post(server.url + "/v1/responses", json={"input": "x", "tools": tools}) as response:
        assert response.status == 200, await response.text()
        ignored = response.headers["X-Eagre-Ignored"].split(", ")
        told = await response.json()
    assert sorted(ignored) == sorted(f"tools[].{kind}" for kind in (*SERVERS, "shell"))
    assert text_of(told) == "f;user:x|"
    assert [tool["type"] for tool in told["tools"]] == ["function", *SERVERS, "shell"]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "function", "name": "f", "namespace": "mcp__node"}, [("function_call", "mcp__node")]),
        ({"type": "namespace", "name": "mcp__node"}, [("function_call", "mcp__node")]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "mcp__node__f"}]},
         [("function_call", "mcp__node")]),
    ],
)  # fmt: skip
async def test_choices_of_one_and_of_some(start_saying, choice: Any, told: Any) -> None:
    server = await start_saying('[{"name": "mcp__node__f", "arguments": {}}]')
    response = await ask(server, input="x", tools=[SPACE, FUNCTION, CUSTOM], tool_choice=choice)
    assert [(item["type"], item.get("namespace")) for item in response["output"]] == told
    assert response["tool_choice"] == choice


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"type": "custom", "name": "f"}, 'the custom "f"'),
        ({"type": "shell"}, '"shell"'),
        ({"type": "function", "name": "f", "namespace": "other"}, '"f"'),
        ({"type": "custom"}, "needs a name"),
        ({"names": "f"}, "must be"),
    ],
)
async def test_a_choice_of_no_tool_is_named(server: RunningServer, choice: Any, words: str) -> None:
    status, answer = await server.post("/v1/responses", {"input": "x", "tools": [FUNCTION], "tool_choice": choice})
    assert (status, answer["error"]["param"]) == (400, "tool_choice")
    assert words in answer["error"]["message"]


async def test_a_choice_of_a_tool_that_is_left_out_is_ignored(server: RunningServer) -> None:
    body = {"input": "x", "tools": [FUNCTION, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}
    async with server.http.post(server.url + "/v1/responses", json=body) as response:
        assert response.status == 200
        assert response.headers["X-Eagre-Ignored"] == "tool_choice, tools[].web_search"


@pytest.mark.parametrize(
    ("tool", "param", "words"),
    [
        (CUSTOM | {"format": GRAMMAR | {"definition": "x"}}, "tools[0].format", "neither a rule"),
        (CUSTOM | {"format": {"type": "grammar", "syntax": "lark"}}, "tools[0].format", "definition"),
        (CUSTOM | {"format": GRAMMAR | {"syntax": "regex", "definition": "("}}, "tools", "cannot be used"),
        ({"type": "namespace", "name": "n", "tools": [FUNCTION, FUNCTION]}, None, "same name"),
        ({"type": "function"}, "tools[0].name", "required"),
        (5, "tools[0]", "type"),
    ],
)  # fmt: skip
async def test_a_tool_that_is_wrong_is_named(server: RunningServer, tool: Any, param: str, words: str) -> None:
    status, answer = await server.post("/v1/responses", {"input": "x", "tools": [tool]})
    assert (status, answer["error"]["param"]) == (400, param)
    assert words in answer["error"]["message"]


CALLS: list[tuple[dict[str, Any], str]] = [
    ({"type": "function_call", "name": "f", "namespace": "mcp__node", "arguments": {"a": 1}}, '!mcp__node__f{"a": 1}'),
    ({"type": "function_call", "name": "f", "arguments": None}, "!f{}"),
    ({"type": "custom_tool_call", "name": "walk", "input": 'go "on"'}, '!walk{"input": "go \\"on\\""}'),
    ({"type": "local_shell_call", "action": {"type": "exec", "command": [], "env": {}}}, '!local_shell{"command": []}'),
    ({"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": None}}, '!shell{"commands": ["ls"]}'),
    ({"type": "apply_patch_call", "operation": {"path": "a", "diff": ""}}, '!apply_patch{"path": "a", "diff": ""}'),
    ({"type": "tool_search_call", "execution": "client", "arguments": {"query": "q"}}, '!tool_search{"query": "q"}'),
]  # fmt: skip


@pytest.mark.parametrize(("call", "told"), CALLS)
async def test_calls_of_every_kind_are_calls_in_the_prompt(server: RunningServer, call: Any, told: str) -> None:
    call = {"call_id": "c1", **call}
    result = {"type": "function_call_output", "call_id": "c1", "output": "r"}
    response = await ask(server, input=[{"role": "user", "content": "q"}, call, result])
    assert text_of(response) == f"user:q|assistant:{told}|tool:rc1|"


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"type": "custom_tool_call_output", "call_id": "c", "output": "o"}, "tool:oc|"),
        ({"type": "local_shell_call_output", "id": "c", "output": "o"}, "tool:oc|"),
        ({"type": "shell_call_output", "call_id": "c", "output": [
            {"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 2}},
            {"stdout": "c", "stderr": "", "outcome": {"type": "timeout"}},
        ]}, "tool:a\nb\n(exit code 2)\nc\n(timeout)c|"),
        ({"type": "apply_patch_call_output", "call_id": "c", "status": "failed"}, "tool:failedc|"),
        ({"type": "tool_search_output", "call_id": "c", "tools": [FUNCTION]}, "f;tool:Found: fc|"),
        ({"type": "additional_tools", "role": "developer", "tools": [SPACE]}, "mcp__node__f;mcp__node__g;"),
        ({"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}", "output": "o"},
         "assistant:!s__n{}|tool:om|"),
        ({"type": "code_interpreter_call", "id": "m", "code": "1", "outputs": [{"type": "logs", "logs": "o"}]},
         'assistant:!code_interpreter{"code": "1"}|tool:om|'),
        ({"type": "compaction", "encrypted_content": sealed("so far")},
         "user:This is a summary of the conversation before:\nso far|"),
        ({"type": "reasoning", "summary": [], "encrypted_content": sealed("hm")}, ""),
    ],
)  # fmt: skip
async def test_items_of_every_kind_say_what_they_can(server: RunningServer, item: Any, told: str) -> None:
    response = await ask(server, input=[item, {"role": "user", "content": "q"}])
    assert text_of(response) == f"{told}user:q|" if not told.startswith(("f;", "mcp__node__f;")) else True
    if told.startswith(("f;", "mcp")):
        assert text_of(response).startswith(told)
    async with server.http.post(
        server.url + "/v1/responses", json={"input": [item, {"role": "user", "content": "q"}]}
    ) as again:
        assert "X-Eagre-Ignored" not in again.headers


PASSED_OVER = (
    "web_search_call", "file_search_call", "computer_call", "computer_call_output", "image_generation_call",
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "agent_message", "ghost_snapshot", "compaction",
    "compaction_summary", "context_compaction", "brand_new",
)  # fmt: skip


@pytest.mark.parametrize("kind", PASSED_OVER)
async def test_what_says_nothing_is_passed_over_with_a_warning(server: RunningServer, kind: str) -> None:
    item = {"type": kind, "encrypted_content": "gAAA"}
    body = {"input": [item, {"role": "user", "content": "q"}]}
    async with server.http.post(server.url + "/v1/responses", json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["X-Eagre-Ignored"] == f"input[].{kind}"
        told = await response.json()
    assert text_of(told) == "user:q|"
    _, listed = await server.get(f"/v1/responses/{told['id']}/input_items?order=asc")
    assert listed["data"][0]["type"] == kind
    followed = await ask(server, input="r", previous_response_id=told["id"])
    assert text_of(followed) == "user:q|assistant:user:q||user:r|"


async def test_tools_of_earlier_input_stay(server: RunningServer) -> None:
    first = await ask(server, input=[{"type": "additional_tools", "tools": [SPACE]}, {"role": "user", "content": "q"}])
    choice = {"type": "function", "name": "f", "namespace": "mcp__node"}
    second = await ask(server, input="r", previous_response_id=first["id"], tools=[FUNCTION])
    assert text_of(second).startswith("f;mcp__node__f;mcp__node__g;")
    status, answer = await server.post(
        "/v1/responses",
        {"input": "r", "previous_response_id": first["id"], "tool_choice": {**choice, "name": "h"}},
    )
    assert (status, answer["error"]["param"]) == (400, "tool_choice")


async def test_the_result_of_no_call_is_refused(server: RunningServer) -> None:
    result = {"type": "function_call_output", "call_id": "c9", "output": "r"}
    status, answer = await server.post("/v1/responses", {"input": [{"role": "user", "content": "q"}, result]})
    assert (status, answer["error"]["param"]) == (400, "input[1].call_id")
    assert "c9" in answer["error"]["message"]
    call = {"type": "custom_tool_call", "call_id": "c9", "name": "g", "input": ""}
    first = await ask(server, input=[{"role": "user", "content": "q"}, call])
    assert (await ask(server, input=[result], previous_response_id=first["id"]))["status"] == "completed"


async def test_pictures_leave_a_note_and_files_of_text_are_read(start_saying: Any) -> None:
    server = await start_saying(ignore_media=True)
    note = "[An image was left out here, because this model cannot see images.]"
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:"}]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    file = {"type": "input_file", "filename": "n.txt", "file_data": "data:text/plain;base64,aGk="}
    body = {
        "input": [
            {"role": "user", "content": [*parts, file]},
            call,
            {"type": "function_call_output", "call_id": "c", "output": parts},
        ]
    }
    async with server.http.post(server.url + "/v1/responses", json=body) as response:
        assert response.headers["X-Eagre-Ignored"] == "input[].content.input_image, input[].output.input_image"
        told = await response.json()
    assert text_of(told) == f"user:a\n{note}\nn.txt:\nhi|assistant:!f{{}}|tool:a\n{note}c|"


async def test_reasoning_comes_back_sealed(start_saying) -> None:
    server = await start_saying("<think>I add.</think>Four.", template=TEMPLATE + "{# </think> #}")
    response = await ask(server, input="x", include=["reasoning.encrypted_content"], store=False)
    sent_back = {"type": "reasoning", "summary": [], "encrypted_content": response["output"][0]["encrypted_content"]}
    server = await start_saying()
    answer = await ask(server, input=[{"role": "user", "content": "x"}, sent_back, response["output"][1]])
    assert text_of(answer) == "user:x|assistant:Four.(I add.)|"


async def test_parameters_of_agents(server: RunningServer) -> None:
    body = {
        "input": [], "instructions": "Go.", "presence_penalty": 0.5, "stream": True,
        "stream_options": {"include_obfuscation": True, "reasoning_summary_delivery": "sequential_cutoff"},
        "reasoning": {"effort": "max", "summary": "none", "mode": "x"}, "text": {"verbosity": "medium"},
        "context_management": [{"type": "compaction", "compact_threshold": 5}],
    }  # fmt: skip
    response = judge(await stream(server, **body))
    assert text_of(response) == "system:Go.|"
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0.5, 0.0)
    assert (await ask(server, input="x", reasoning={"effort": "ultra"}))["reasoning"]["effort"] == "ultra"
    messages = [{"role": "user", "content": "x"}]
    options = {"include_obfuscation": True, "include_usage": True}
    chat = {"messages": messages, "reasoning_effort": "ultra", "stream": True, "stream_options": options}
    assert b"[DONE]" in await server.stream_bytes("/v1/chat/completions", chat)


async def test_tokens_of_the_input_are_counted(server: RunningServer) -> None:
    body = {"input": [{"role": "user", "content": "tide"}], "instructions": "Calm.", "tools": [FUNCTION]}
    assert await server.post("/v1/responses/input_tokens", body) == (
        200, {"object": "response.input_tokens", "input_tokens": len("f;system:Calm.|user:tide|")},
    )  # fmt: skip
    assert (await server.post("/v1/responses/input_tokens", {"input": []}))[0] == 400


async def test_a_conversation_is_compacted_and_goes_on(start_saying) -> None:
    server = await start_saying("A summary.")
    items = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    status, compacted = await server.post("/v1/responses/compact", {"model": "fake", "input": items})
    assert (status, compacted["object"]) == (200, "response.compaction")
    assert [item["type"] for item in compacted["output"]] == ["message", "message", "compaction"]
    assert compacted["usage"]["output_tokens"] == len("A summary.") + 1
    server = await start_saying()
    response = await ask(server, input=[*compacted["output"], {"role": "user", "content": "four"}])
    summary = "This is a summary of the conversation before:\nA summary."
    assert text_of(response) == f"user:one|user:three|user:{summary}|user:four|"
