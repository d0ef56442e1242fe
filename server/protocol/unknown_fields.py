"""Unknown parameters of request bodies: ignored, ignored with a warning, or rejected.

Clients, frameworks and routers add parameters of their own to every body. Most have their default value, or change
nothing in the prompt; rejecting them would reject every request. One that changes the answer and that this server does
not support is rejected by name, and so is a name that is most likely a typo: an answer without what was asked for looks
right and is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from server.protocol.errors import ApiError, UnknownField, UnsupportedField

MAX_IGNORED = 64  # unknown parameters of one body, its messages included
MAX_NAME_CHARS = 64  # of one name where it is repeated to the client

# Names that this server does not have yet, and the values that ask for nothing. null is neutral everywhere.
Unsupported = Mapping[str, tuple[Any, ...]]

_SHARED: Unsupported = {
    "chat_template": (),
    "truncation_side": ("left",),  # cuts the beginning of a prompt
    "top_a": (0.0,),
}

COMPLETIONS: Unsupported = {
    **_SHARED,
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "parallel_tool_calls": (True, False),  # says nothing where there are no tools
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}

CHAT: Unsupported = {
    **_SHARED,
    "add_special_tokens": (False,),  # the chat template writes them
    "audio": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "suffix": ("",),
    "web_search_options": (),
}

# Of one message. Answers of this and of other servers have them, and clients send answers back as they came.
MESSAGE: Unsupported = {"audio": (), "function_call": (), "refusal": ("",)}

# Defaults that other servers document for parameters of their own. SGLang's router adds the first seven to every body.
_DEFAULTS_OF_PEERS: Unsupported = {
    "no_stop_trim": (False,),
    "skip_special_tokens": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "return_hidden_states": (False,),
    "continue_final_message": (False,),
    "require_reasoning": (False,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "guided_decoding_backend": ("auto",),
    "cache_prompt": (True,),
    "include_reasoning": (True,),
    "return_mm_kwargs": (True,),
    "routed_experts_prompt_start": (0,),
    "routed_experts_start_len": (0,),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    # llama.cpp's, which its own page sends with every message.
    "adaptive_decay": (0.9,),
    "adaptive_target": (-1.0,),
    "dynatemp_exponent": (1.0,),
    "dynatemp_range": (0.0,),
    "id_slot": (-1,),
    "min_keep": (0,),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5.0,),
    "n_cache_reuse": (0,),
    "n_cmpl": (1,),
    "n_discard": (0,),
    "n_indent": (0,),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "reasoning_format": ("auto",),
    "repeat_last_n": (64,),
    "repeat_penalty": (1.0,),
    "t_max_predict_ms": (-1, 0),
    "tfs_z": (1.0,),
    "typ_p": (1.0,),
    # OpenRouter's.
    "models": (),
    "route": ("fallback",),
    # Of text-generation-webui, whose clients send all of theirs.
    "do_sample": (True,),
    "guidance_scale": (1.0,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "top_n": (),  # of rerankers
}
# Names that others have for parameters of this server. Whoever asks for something by them means these.
_OTHER_NAMES = {
    "typ_p": "typical_p", "repeat_penalty": "repetition_penalty", "n_cmpl": "n", "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    # llama.cpp, SGLang, and vLLM before its structured_outputs.
    "grammar": "structured_outputs", "json_schema": "structured_outputs", "ebnf": "structured_outputs",
    "regex": "structured_outputs", "guided_json": "structured_outputs", "guided_regex": "structured_outputs",
    "guided_choice": "structured_outputs", "guided_grammar": "structured_outputs",
}  # fmt: skip
# Fields of one route only. Who sends one to the other means something that would not happen.
_OF_ONE_ROUTE = frozenset({"messages", "prompt", "max_completion_tokens", "top_logprobs"})
_EMPTY: tuple[Any, ...] = ([], {}, "")


class UnknownFields:
    """Collects, over the parts of one body, the names that are ignored with a warning."""

    def __init__(self) -> None:
        self.ignored: list[str] = []  # in the order of the body, each once
        # Names that were compared with some fields and are none of them, by the id of the fields. The fields are stored
        # too, so that no others get this id.
        self._compared: dict[int, tuple[Collection[str], set[str]]] = {}

    def drop_from(self, part: Any, fields: Collection[str], unsupported: Unsupported, path: str = "") -> Any:
        """`part` of a body with only the names of `fields`; what is no JSON object is returned as it is.

        Args:
            unsupported: names that are rejected unless they have one of these values.
            path: of the part, with the dot that follows it, as ignored names are reported.

        Raises:
            UnsupportedField: one of `unsupported` has another value.
            UnknownField: a name is most likely a typo of one of `fields`.
            ApiError: the body has too many unknown parameters.
        """
        if not isinstance(part, dict):
            return part
        kept = {}
        for name, value in part.items():
            if name in fields:
                kept[name] = value
            elif name in unsupported:
                if value is not None and not any(_is_same(value, allowed) for allowed in unsupported[name]):
                    raise UnsupportedField(name, value)
            else:
                self._check_unknown(name, value, fields, path)
        return kept

    def _check_unknown(self, name: str, value: Any, fields: Collection[str], path: str) -> None:
        shown = path + name[:MAX_NAME_CHARS]
        _, compared = self._compared.setdefault(id(fields), (fields, set()))
        if shown in compared or _is_default(name, value):
            return  # four thousand messages may have the same name, which is compared once
        if name in _OF_ONE_ROUTE:
            raise UnknownField(name)
        if name in _OTHER_NAMES:
            raise UnknownField(name, _OTHER_NAMES[name])
        if name not in _DEFAULTS_OF_PEERS:
            meant = next((field for field in fields if is_typo(name, field)), None)
            if meant is not None:
                raise UnknownField(name, meant)
        compared.add(shown)
        if shown in self.ignored:
            return
        if len(self.ignored) == MAX_IGNORED:
            raise ApiError(
                f"the body has more than {MAX_IGNORED} unknown parameters, the limit; the last is {shown}",
                param=path + name,
                code="unknown_parameter",
            )
        self.ignored.append(shown)


def is_typo(name: str, meant: str) -> bool:
    """Whether `name` is `meant` but for one letter (added, left out, exchanged, or swapped with the next one).

    Capitals, hyphens and underscores do not count: `maxTokens` and `max-tokens` are typos of `max_tokens`. A name of
    fewer than four letters is too short to tell.
    """
    first, second = _letters(name), _letters(meant)
    if len(second) < 4 or abs(len(first) - len(second)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if start is None:
        return True  # equal, or one letter more at the end
    a, b = first[start:], second[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def _is_default(name: str, value: Any) -> bool:
    """Whether an unknown parameter has its default value in every server. Where that is true, false is a request."""
    defaults = _DEFAULTS_OF_PEERS.get(name, ())
    if value is False:
        return not any(default is True for default in defaults)
    return value is None or value in _EMPTY or any(_is_same(value, default) for default in defaults)


def _letters(name: str) -> str:
    return name[:MAX_NAME_CHARS].replace("_", "").replace("-", "").lower()


def _is_same(value: Any, allowed: Any) -> bool:
    """Whether both are equal, where true is not 1, as in JSON."""
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)
