"""A body that each route takes, and values that most routes do not."""

from __future__ import annotations

from typing import Any

_CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "tide"}]}]
_TOOL = {
    "name": "look",
    "description": "looks",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
}
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
_VIDEO = {"type": "video", "video": [_PICTURE["image_url"], "data:image/png;base64,iVBORw0KGgo="], "fps": 2}
_CALLS = [
    {"role": "assistant", "content": None,
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": "b"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
]  # fmt: skip
_SAMPLING = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["e"], "logit_bias": {"5": 1.0}, "min_p": 0.1,
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "max_tokens": 2,
}  # fmt: skip
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}

# Paths with bodies that their routes take. Some of them a model refuses, which is an answer too.
ROUTE_BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "tide", "n": 2, "best_of": 2, "echo": True, "logprobs": 2, **_SAMPLING}),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "a", "suffix": "b", "resumable": True, "stream": True, "timeout": 5}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "a+"}, "bad_words": ["b"], "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": _CHAT, "logprobs": True, "top_logprobs": 2, **_SAMPLING}),
    ("/v1/chat/completions", {
        "messages": [*_CHAT, *_CALLS], "tools": [{"type": "function", "function": _TOOL}], "tool_choice": "auto",
        "parallel_tool_calls": False, "max_tokens": 2, "user": "u", "metadata": {"a": "b"},
    }),
    ("/v1/chat/completions", {
        "messages": _CHAT, "max_tokens": 2, "response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "strict": True, "schema": _SCHEMA}},
    }),
    ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, _PICTURE]}], "max_tokens": 2,
        "mm_processor_kwargs": {"max_pixels": 9999}, "chat_template_kwargs": {"enable_thinking": False},
        "documents": [{"title": "a", "text": "b"}],
    }),
    ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, _VIDEO]}], "max_tokens": 2,
        "mm_processor_kwargs": {"fps": 1},
    }),
    ("/v1/chat/completions/render", {"messages": _CHAT}),
    ("/v1/chat/completions/input_tokens", {"messages": _CHAT}),
    ("/v1/completions/render", {"prompt": ["a", "b"]}),
    ("/v1/responses", {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "tide"}]},
                  {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "c", "output": "seen"}],
        "tools": [{"type": "function", **_TOOL}], "max_output_tokens": 2, "store": True, "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "truncation": "auto", "include": [],
    }),
    ("/v1/responses", {"input": "a", "previous_response_id": "resp_1", "max_output_tokens": 2}),
    ("/v1/responses", {"input": "a", "background": True, "stream": True, "max_output_tokens": 2}),
    ("/v1/responses/input_tokens", {"input": "a", "instructions": "b"}),
    ("/v1/responses/compact", {"model": "m", "input": "a", "instructions": "b"}),
    ("/v1/conversations", {"items": [{"role": "user", "content": "a"}], "metadata": {"a": "b"}}),
    ("/v1/conversations/conv_1", {"metadata": {"a": "b"}}),
    ("/v1/conversations/conv_1/items", {"items": [{"role": "user", "content": "a"}]}),
    ("/v1/messages", {
        "messages": [{"role": "user", "content": "tide"},
                     {"role": "assistant", "content": [
                         {"type": "thinking", "thinking": "t", "signature": "s"},
                         {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": "b"}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "seen"}]}],
        "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 2, "stop_sequences": ["e"], "top_k": 4,
        "tools": [{"name": "look", "description": "d", "input_schema": _SCHEMA}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
    }),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "tide"}], "system": "a"}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 2}),
    ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True}),
    ("/rerank", {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 3}),
    ("/rerank", {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True, "truncate": True}),
    ("/v2/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 5}),
    ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
    ("/score", {"queries": ["a"], "documents": ["b"], "use_activation": False}),
    ("/classify", {"input": ["a"], "use_activation": True}),
    ("/tokenize", {"prompt": "a", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"messages": _CHAT, "tools": [{"type": "function", "function": _TOOL}]}),
    ("/tokenize", {"content": "a", "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/api/chat", {
        "model": "m", "messages": [{"role": "user", "content": "a", "images": ["iVBORw0KGgo="]}], "stream": False,
        "options": {"num_predict": 2, "stop": ["e"], "num_ctx": 512}, "format": _SCHEMA, "keep_alive": "5m",
        "think": False,
    }),
    ("/api/generate", {"model": "m", "prompt": "a", "suffix": "b", "context": [1, 2], "options": {"num_predict": 2}}),
    ("/api/embed", {"model": "m", "input": ["a"], "truncate": True, "dimensions": 2}),
    ("/api/embeddings", {"model": "m", "prompt": "a"}),
    ("/api/show", {"model": "m"}),
    ("/api/pull", {"model": "owner/name", "stream": False}),
    ("/completion", {
        "prompt": "a", "n_predict": 2, "n_probs": 2, "logit_bias": [[5, 1.0]], "samplers": ["top_k"], "lora": [],
        "json_schema": _SCHEMA, "dry_sequence_breakers": ["a"], "stop": ["e"], "cache_prompt": True, "id_slot": -1,
    }),
    ("/completion", {
        "prompt": {"prompt_string": "a <__media__>", "multimodal_data": ["aGFsbG8="]}, "n_predict": 2, "n_probs": 2,
        "post_sampling_probs": True,
    }),
    ("/chat/completions", {"messages": [*_CHAT, {"role": "assistant", "content": "b"}], "max_tokens": 2}),
    ("/completions", {"prompt": [1, "a", 2], "n_predict": 2, "grammar": 'root ::= "a"'}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c", "filename": "d"}]}),
    ("/embedding", {"content": "a"}),
    ("/embeddings", {"content": ["a", [1, 2]]}),
    ("/apply-template", {"messages": _CHAT}),
    ("/models/load", {"model": "m"}),
    ("/models/unload", {"model": "m"}),
    ("/v1/load_lora_adapter", {
        "lora_name": "l", "lora_path": "/etc/passwd", "base_model_name": "m", "load_inplace": True,
    }),
    ("/v1/unload_lora_adapter", {"lora_name": "l"}),
    ("/v1/batches", {
        "input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"a": "b"},
    }),
    ("/v1/requests/r1/cancel", {}),
    ("/v1/responses/resp_1/cancel", {}),
    ("/v1/batches/batch_1/cancel", {}),
    ("/v1/mcp/none", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
    ("/admin/pause", {"model": "m"}),
    ("/admin/models", {"model": "owner/name"}),
)  # fmt: skip

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 17, 1 << 31, 1 << 53, 1 << 63, 1 << 64, -(1 << 63), 10**400, 0.0, -0.0, 1e308, -1e308,
    5e-324, "", " ", "\0", "a", "\ud800", "\u202e", "\ufdd0\uffff", "\x1b[2J", "a" * 70_000, "é\u0301" * 3000,
    "<|im_end|>", "../../etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/a.png",
    "http://[::ffff:10.0.0.1]/a.png", "data:image/png;base64,", "data:;base64,AAAA", "1e999", "NaN", "%s%n{0}{{x}}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "(a+)+$", "((((((((((a{9}){9}){9}){9}){9}", "auto", "required", "json_object", "system", "tool", "assistant",
    [], {}, [[]], [None], [{}], {"": ""}, {"type": "text"}, {"type": None}, {"$ref": "#"}, {"type": "image_url"},
    {"anyOf": [{"$ref": "#"}]}, ["a"] * 1000, [0] * 1000, [-1], [1 << 40], [1.5], [True], {"a" * 3000: 1}, [[[[[[]]]]]],
    {str(number): number for number in range(400)},
)  # fmt: skip
