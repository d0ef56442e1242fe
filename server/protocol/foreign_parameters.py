"""Parameters of other servers and clients that this server does not have: defaults, other names, refused values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_LIMIT = -1  # of max_tokens, as llama.cpp and LM Studio have it: as many as the model has room for

# Names that this server does not have yet, and the values that ask for nothing. null is neutral everywhere.
Unsupported = Mapping[str, tuple[Any, ...]]

_SHARED: Unsupported = {
    "chat_template": (),
    "mirostat": (0,),
    "num_beams": (1,),
    "top_a": (0.0,),
    "use_beam_search": (False,),
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
    "modalities": (["text"],),
    "suffix": ("",),
}

# Of one message. Answers of this and of other servers have them, and clients send answers back as they came.
MESSAGE: Unsupported = {"audio": (), "refusal": ()}

# Defaults that other servers document for parameters of their own. SGLang's router adds the first seven to every body.
DEFAULTS_OF_PEERS: Unsupported = {
    "no_stop_trim": (False,),
    "skip_special_tokens": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "return_hidden_states": (False,),
    "continue_final_message": (False,),
    "require_reasoning": (False,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
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
    "penalty_alpha": (0.0,),
    "top_n": (),  # of rerankers
}
AT_MOST = "n_predict"  # a length that llama.cpp never refuses: its answers end with the context
# Other servers' names of parameters that take the same values here.
SAME_MEANING = {
    "typ_p": "typical_p", "repeat_penalty": "repetition_penalty", "n_cmpl": "n", "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
}  # fmt: skip
# Names that others have for parameters of this server. Whoever asks for something by them means these.
OTHER_NAMES = {
    **SAME_MEANING,
    # llama.cpp, SGLang, and vLLM before its structured_outputs.
    "grammar": "structured_outputs", "json_schema": "structured_outputs", "ebnf": "structured_outputs",
    "regex": "structured_outputs", "guided_json": "structured_outputs", "guided_regex": "structured_outputs",
    "guided_choice": "structured_outputs", "guided_grammar": "structured_outputs",
}  # fmt: skip
# Fields of one route only. Who sends one to the other means something that would not happen.
OF_ONE_ROUTE = frozenset({"messages", "prompt", "max_completion_tokens", "top_logprobs"})


def with_own_names(body: Any) -> Any:
    """A decoded body with this server's names of parameters that other servers have too.

    Where a body has both names, nothing is renamed, and the other one is refused.
    """
    if not isinstance(body, dict) or body.keys().isdisjoint(SAME_MEANING):
        return body
    renamed = dict(body)
    for theirs, own in SAME_MEANING.items():
        if renamed.get(theirs) is None or renamed.get(own) is not None:
            continue
        value = renamed.pop(theirs)
        if theirs == AT_MOST and type(value) is int and value in (0, -2):
            value = 1 if value == 0 else NO_LIMIT  # 0 computes a prompt alone, which a token has to follow here
        renamed[own] = value
    return renamed
