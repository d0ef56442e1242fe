"""Descriptions of all request parameters, for the OpenAPI document and the tables of docs/protocol.md."""

from __future__ import annotations

import json
from typing import NamedTuple

from sampling.host.params import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_N_SIGMA,
)
from server.api.anthropic.blocks_in import MAX_BLOCKS
from server.api.anthropic.tools import MAX_TOOLS as MAX_ANTHROPIC_TOOLS
from server.api.openai.chat_request import MAX_MESSAGES, MAX_PARTS
from server.api.openai.completion_request import MAX_PROMPTS
from server.api.openai.queries import MAX_INPUTS, MAX_TOKENS
from server.api.responses.responses_request import MAX_METADATA
from server.protocol.generation_fields import MAX_CHOICES, MAX_STOP_LENGTH, MAX_STOPS
from server.protocol.sampling_fields import (
    DEFAULT_BREAKERS,
    MAX_ALLOWED_IDS,
    MAX_BAD_WORD_LENGTH,
    MAX_BREAKER_LENGTH,
    MAX_BREAKERS,
)
from server.protocol.template_fields import MAX_DOCUMENTS, MAX_VARIABLE_BYTES, MAX_VARIABLES
from server.protocol.tools import MAX_TOOLS


class Parameter(NamedTuple):
    """What readers need to know of a parameter and its schema does not say."""

    text: str  # what it means, in CommonMark
    default: str = ""  # what holds where it is not given, if that is not the sampler's or the schema's default
    values: str = ""  # what it may be, where the schema says less
    section: str = ""  # heading of docs/protocol.md that says more


_SCHEMA_OR_GRAMMAR = "Structured output"
_REQUEST_ID = "1 to 128 of `A-Z a-z 0-9 . _ : -`"

DESCRIPTIONS: dict[str, Parameter] = {
    "add_generation_prompt": Parameter(
        "Whether the prompt ends with the beginning of an assistant's turn.",
        default="`true`, unless the last message is continued",
    ),
    "add_special_tokens": Parameter(
        "Whether the tokenizer puts its special tokens, such as begin-of-sequence, before a text.", default="`true`"
    ),
    "allowed_token_ids": Parameter(
        "No other token is drawn.",
        default="all",
        values=f"at least one id of the vocabulary, at most {MAX_ALLOWED_IDS:,}",
    ),
    "background": Parameter(
        "The request is answered at once with the status `queued`, and the response is made without a connection.",
        section="What is stored",
    ),
    "bad_words": Parameter(
        "Texts that the answer must not contain. They are tokenised as within a text, with and without a space before "
        f"them; each form may have {MAX_BAD_WORD_TOKENS} tokens. A word that the model spells with other tokens is not "
        "found.",
        values=f"at most {MAX_BAD_WORDS} texts of 1 to {MAX_BAD_WORD_LENGTH} characters",
    ),
    "best_of": Parameter(
        "Number of answers that are generated; the `n` with the highest mean log probability per token are returned, "
        "the best first. All count in `usage`. With `stream` it must equal `n`.",
        default="`n`",
        values=f"`n` to {MAX_CHOICES}",
    ),
    "cache_salt": Parameter("Cached prefixes are shared among requests of the same salt only."),
    "chat_template_kwargs": Parameter(
        'Variables for the chat template, such as `{"enable_thinking": false}`. Names of the template\'s own variables '
        "(`messages`, `tools`, `documents`, …) are reserved.",
        values=f"an object of at most {MAX_VARIABLES} names and {MAX_VARIABLE_BYTES >> 10} KiB",
    ),
    "continue_final_message": Parameter(
        "The last message is left open, and the answer is exactly what follows its text."
    ),
    "conversation": Parameter(
        "The conversation that the response follows and is added to: its id, or an object with its `id`.",
        section="Conversations",
    ),
    "dimensions": Parameter("Number of values of each embedding that are kept.", default="all"),
    "documents": Parameter(
        "Documents for the chat template, which may render them in a way of its own.",
        values=f"at most {MAX_DOCUMENTS} objects",
    ),
    "drain": Parameter("Whether to wait for running requests first."),
    "drop_weights": Parameter("Whether the device memory of the weights is freed too."),
    "dry_allowed_length": Parameter("DRY: shorter repetitions are not penalised."),
    "dry_base": Parameter("DRY: how fast the penalty grows with the length of the repetition."),
    "dry_multiplier": Parameter(
        "DRY: above 0, a token that would continue a repetition of *L* tokens loses "
        "`dry_multiplier × dry_base^(L − dry_allowed_length)` of its logit."
    ),
    "dry_penalty_last_n": Parameter("DRY: number of tokens of prompt and output that are searched; −1 means all."),
    "dry_sequence_breakers": Parameter(
        "DRY: no repetition reaches across a token whose text, or name if it is a control token, contains one of "
        "these.",
        default=f"`{json.dumps(DEFAULT_BREAKERS)}`",
        values=f"at most {MAX_BREAKERS} texts of 1 to {MAX_BREAKER_LENGTH} characters",
    ),
    "echo": Parameter(
        "The text of each answer begins with its prompt; with `logprobs`, their lists begin with the prompt's tokens, "
        "the first of which has `null`. With `max_tokens` 0 the answer is the prompt alone, from which evaluation "
        "harnesses read the log probabilities of a text."
    ),
    "encoding_format": Parameter("Lists of numbers, or base64 of little-endian 32-bit floats.", default="`float`"),
    "frequency_penalty": Parameter("Subtracted from a token's logit for each time that it is in the output."),
    "ignore_eos": Parameter("Generation goes on past the end-of-sequence token."),
    "include": Parameter(
        "`message.output_text.logprobs` adds log probabilities, with `top_logprobs` alternatives. Other values that "
        "OpenAI knows change nothing."
    ),
    "include_metrics": Parameter("Adds timings to the answer.", section="Timings"),
    "include_reasoning": Parameter(
        "`false` leaves the reasoning out of the answer; it is generated all the same.", default="`true`"
    ),
    "include_stop_str_in_output": Parameter("The answer ends after the stop string instead of before it."),
    "input": Parameter(
        "A text, or items: `message` (roles `user`, `assistant`, `system`, `developer`; text parts only), "
        "`function_call`, `function_call_output`, `reasoning`, and `item_reference`, the `id` of an item of a stored "
        "response.",
        values="a text, or a list of items",
    ),
    "instructions": Parameter("A system message for this response only."),
    "items": Parameter("Items of the conversation.", values="at most 20 items"),
    "logit_bias": Parameter(
        'Values that are added to logits by token id, for example `{"1234": -5}`.',
        values=f"at most {MAX_LOGIT_BIAS} entries, each −{MAX_BIAS:g} to {MAX_BIAS:g}",
    ),
    "logprob_token_ids": Parameter(
        "Tokens whose log probabilities are returned at every position. Only with `logprobs`.",
        values=f"at most {MAX_LOGPROB_TOKEN_IDS} ids of the vocabulary",
        section="Log probabilities",
    ),
    "logprobs": Parameter(
        "Log probabilities of the generated tokens; a completion names the number of alternatives.",
        section="Log probabilities",
        values="chat: boolean; completions: 0 to 20",
    ),
    "max_completion_tokens": Parameter("The newer name of `max_tokens`, which it overrides.", values="as `max_tokens`"),
    "max_output_tokens": Parameter(
        "Maximum number of tokens of the answer, those of reasoning and calls included.",
        default="all that fits",
        values="from 1",
    ),
    "max_tokens": Parameter(
        "Maximum number of tokens of each answer. Prompt and answer together must fit the model's context. 0 is "
        "allowed with `echo` only.",
        default="completions: 16, or less where the context is full; chat: all that fits",
        values="from 1; 0 with `echo`",
    ),
    "max_tool_calls": Parameter("Without effect: the server runs no tools of its own.", values="integer"),
    "messages": Parameter(
        "The conversation so far.",
        section="Messages",
        values=f"1 to {MAX_MESSAGES} messages of at most {MAX_PARTS} content parts",
    ),
    "metadata": Parameter(
        "Texts by name for the client's own use; the answer repeats them.", values=f"at most {MAX_METADATA} pairs"
    ),
    "min_p": Parameter("Removes tokens that are less probable than this share of the most probable one."),
    "min_tokens": Parameter(
        "Before this number of tokens nothing ends the answer: no end-of-sequence or stop token is drawn, and the text "
        "is not searched for `stop`.",
        values="0 to `max_tokens`",
    ),
    "model": Parameter(
        "Name of a served model; any other name is a 404.", default="the first served model", values="a served name"
    ),
    "n": Parameter("Number of answers per prompt. With a seed, answer *j* uses `seed + j`.", default="1"),
    "num_prompt_output_tokens": Parameter(
        "Number of tokens at the end of the prompt that are the answer so far, which is continued.",
        default="0",
        values="0 to the prompt's tokens − 1",
        section="An answer goes on",
    ),
    "output_config": Parameter(
        "`effort` goes to the chat template as `reasoning_effort`; `format` is a JSON schema that the answer follows."
    ),
    "parallel_tool_calls": Parameter("Whether an answer may contain several calls.", default="`true`", section="Tools"),
    "parse_special": Parameter("Names of control tokens in messages become those tokens.", section="Messages"),
    "path": Parameter("Path of the weights on the server's machine: same architecture, same sizes."),
    "pooling": Parameter("State of the last token, or the mean of all.", default="`last`"),
    "presence_penalty": Parameter("Subtracted from the logits of tokens that are in the output."),
    "previous_response_id": Parameter(
        "The response that this one follows. Its input and output, and all that it follows itself, come before `input`."
    ),
    "priority": Parameter(
        "Requests with a lower number run first; equal ones run in order of arrival.",
        default="0",
        values="−2³¹ to 2³¹ − 1",
    ),
    "prompt": Parameter(
        "What is continued.", section="Prompts", values=f"a text, token ids, or at most {MAX_PROMPTS} of either"
    ),
    "prompt_cache_key": Parameter("Without effect: common prefixes are found without it. The answer repeats it."),
    "prompt_logprobs": Parameter(
        "Log probabilities of the prompt's tokens, with this number of alternatives. The whole prompt is computed; the "
        "prefix cache is not used.",
        section="Log probabilities",
    ),
    "reasoning": Parameter(
        "`effort` goes to the chat template. Reasoning is an item of its own in the output, with its text."
    ),
    "reasoning_effort": Parameter(
        "Goes to the chat template; `none` also as `enable_thinking: false` and `thinking: false`.",
        default="the template's",
        section="Reasoning",
    ),
    "repetition_penalty": Parameter(
        "Divides positive logits of tokens in prompt or output, and multiplies negative ones."
    ),
    "request_id": Parameter(
        "The client's own id of the request, which becomes part of the answer's `id`.",
        default="`X-Request-Id`",
        values=_REQUEST_ID,
    ),
    "response_format": Parameter("Asks for JSON, or for JSON of a schema.", section=_SCHEMA_OR_GRAMMAR),
    "resumable": Parameter(
        "The stream survives a lost connection: its events are numbered and kept. Only with `stream`.",
        section="Resumable streams",
    ),
    "return_progress": Parameter(
        "Before its first token the stream reports the place in the queue and how much of the prompt is computed. Only "
        "with `stream`.",
        section="Waiting",
    ),
    "return_token_ids": Parameter("Adds the token ids of prompt and answer."),
    "return_token_strs": Parameter("Adds the text of each token as `token_strs`."),
    "return_token_texts": Parameter("Adds what each token stands for by itself as `token_texts`."),
    "return_tokens_as_token_ids": Parameter(
        "`logprobs` name each token by its id (`token_id:1234`) instead of its text, so that no two have the same name."
    ),
    "safety_identifier": Parameter("Without effect; the answer repeats it."),
    "seed": Parameter(
        "The same seed gives the same tokens, whatever else the server computes.",
        default="drawn by the server",
        values="a signed 64-bit integer",
    ),
    "service_tier": Parameter("Without effect."),
    "stop": Parameter(
        "The answer ends before the first of these texts.",
        values=f"a text, or at most {MAX_STOPS}; 1 to {MAX_STOP_LENGTH} characters each",
    ),
    "stop_sequences": Parameter(
        "The answer ends before the first of these texts.",
        values=f"at most {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters",
    ),
    "stop_token_ids": Parameter(
        "The answer ends at any of these tokens.", values=f"at most {MAX_STOP_TOKEN_IDS} ids of the vocabulary"
    ),
    "store": Parameter("Whether the response can be fetched and followed later.", default="`true`"),
    "stream": Parameter("Server-sent events instead of one JSON body. On the WebSocket it is always true."),
    "stream_interval": Parameter(
        "Minimum number of tokens of a delta, except the first and the last of an answer.", default="1"
    ),
    "stream_options": Parameter(
        "`include_usage` ends the stream with the usage; with it, `continuous_usage_stats` puts the usage so far into "
        "every chunk. Only with `stream`.",
        values='`{"include_usage": boolean, "continuous_usage_stats": boolean}`',
    ),
    "structured_outputs": Parameter(
        "A JSON schema, regular expression, choice or grammar that the answer must match.", section=_SCHEMA_OR_GRAMMAR
    ),
    "suffix": Parameter("The text after a gap that the model fills.", section="A gap to fill"),
    "system": Parameter(
        "The system prompt. A block that begins with `x-anthropic-billing-header`, which differs in each request of "
        "Claude Code, is left out, because no prefix after it could be found in the cache.",
        values="a text, or blocks of text",
    ),
    "temperature": Parameter(
        "Divides the logits; 0 always takes the most probable token.", section="Defaults of a model"
    ),
    "text": Parameter(
        "`format` is `text`, `json_object`, or `json_schema` with its `name` and `schema` next to the type; the answer "
        "follows it to the letter.",
        values="an object with `format`",
        section=_SCHEMA_OR_GRAMMAR,
    ),
    "thinking": Parameter(
        "`enabled` or `adaptive` sets `enable_thinking` for the chat template, and the reasoning comes as the first "
        '`thinking` block; `"display": "omitted"` leaves its text out, and `budget_tokens` limits its tokens. Its '
        "`signature` has no meaning.",
        default="`disabled`",
        values="an object with the `type` `enabled`, `adaptive`, `between_tools` or `disabled`",
    ),
    "thinking_token_budget": Parameter(
        "Maximum number of tokens of the reasoning, counted from its opening marker on. Then its closing marker is "
        "written and the answer goes on freely. 0 closes it at once, −1 is no limit. Tokens that "
        "`num_prompt_output_tokens` names count.",
        default="no limit",
        section="Reasoning",
    ),
    "timeout": Parameter(
        'Seconds after which the answer ends with `finish_reason: "timeout"` and the tokens that it has. The server\'s '
        "own limit applies where it is lower.",
        default="`--request-timeout`",
    ),
    "tokens": Parameter("Token ids.", values=f"at most {MAX_TOKENS:,} token ids"),
    "tool_choice": Parameter(
        "Whether the model calls a tool: `none`, `auto`, `required`, or one tool by its name.",
        default="`auto`",
        section="Tools",
        values="`none`, `auto`, `required`, or an object that names a function",
    ),
    "tools": Parameter(
        "Functions that the model may call; calls of a `strict` one follow its schema.",
        section="Tools",
        values=f"at most {MAX_TOOLS} functions",
    ),
    "top_k": Parameter(
        "Only this number of the most probable tokens remain; 0 and −1 keep the whole vocabulary.",
        values="positive; 0 or −1",
    ),
    "top_logprobs": Parameter(
        "Number of alternatives for each token. Only with `logprobs`.", default="0", section="Log probabilities"
    ),
    "top_n_sigma": Parameter(
        "Keeps the logits that are at most this number of standard deviations below the best; 0 and −1 keep all.",
        values=f"0 to {MAX_TOP_N_SIGMA:g}; −1",
    ),
    "top_p": Parameter("Only the most probable tokens that together have this probability remain; 1 keeps all."),
    "truncate_prompt_tokens": Parameter(
        "Number of tokens at the end of each prompt that are kept; −1 keeps as many as leave room for `max_tokens`. "
        "What the tokenizer puts before a text, such as a begin-of-sequence token, stays.",
        values="−1, or from 1",
    ),
    "truncation": Parameter(
        "`auto` leaves out the oldest turns where the conversation is too long for the model; `disabled` refuses it.",
        default="`disabled`",
    ),
    "typical_p": Parameter("Keeps the tokens whose surprise is closest to the expected one; 1 keeps all."),
    "user": Parameter("Accepted and not used."),
    "xtc_probability": Parameter("XTC: how often all top choices but the least probable are removed."),
    "xtc_threshold": Parameter("XTC: the probability from which on a token is a top choice."),
}

# Parameters that mean something else, or take other values, in one body, by the name of its model.
OF_BODY: dict[str, dict[str, Parameter]] = {
    "ChatCompletionRequest": {
        "logprobs": DESCRIPTIONS["logprobs"]._replace(text="Log probabilities of the generated tokens.", values="")
    },
    "CompletionRequest": {
        "logprobs": DESCRIPTIONS["logprobs"]._replace(
            text="Log probabilities of the generated tokens, with this number of alternatives.", values=""
        )
    },
    "ResponsesRequest": {
        "tools": Parameter(
            'Functions, `{"type": "function", "name", "parameters", …}`. Tools that the server would have to run, such '
            "as `web_search`, are refused by name.",
            values=f"at most {MAX_TOOLS} functions",
        ),
        "tool_choice": Parameter(
            "Whether the model calls a tool.",
            default="`auto`",
            values='`none`, `auto`, `required`, a function, or `{"type": "allowed_tools", "mode", "tools"}`',
            section="Tools",
        ),
        "user": Parameter("Without effect; the answer repeats it."),
    },
    "EmbeddingsRequest": {
        "input": Parameter(
            "What embeddings are made of.", values=f"a text, token ids, or at most {MAX_INPUTS} of either"
        )
    },
    "TokenizeRequest": {
        "prompt": Parameter("The text. Either it or `messages` is given.", values="a text"),
    },
    "AbortBody": {"request_id": Parameter("Id of the request, whichever key made it.")},
}
_ANTHROPIC = {
    "messages": Parameter(
        "Turns of `user`, `assistant` and `system`. Blocks are `text`, `tool_use`, `tool_result` (a text or blocks of "
        "text; `is_error`), `thinking`, `redacted_thinking`, and `document` with a text in it. Images and others are "
        "refused by name. Where the last turn is the assistant's, the answer goes on with it.",
        values=f"1 to {MAX_MESSAGES} turns, each a text or at most {MAX_BLOCKS} blocks",
    ),
    "tools": Parameter("Tools with an `input_schema`.", values=f"at most {MAX_ANTHROPIC_TOOLS} tools"),
    "tool_choice": Parameter(
        "Whether the model calls a tool, with `disable_parallel_tool_use`. Calls that are forced follow the schemas to "
        "the letter.",
        default="`auto`",
        values="an object with the `type` `auto`, `any`, `tool` or `none`",
    ),
    "max_tokens": Parameter(
        "Maximum number of tokens of the answer. It may be more than the model has room for; an answer that fills the "
        "context has the `stop_reason` `model_context_window_exceeded`."
    ),
    "stream": Parameter(
        "The events `message_start`, `content_block_start`, `content_block_delta` (`text_delta`, `thinking_delta`, "
        "`signature_delta`, `input_json_delta`), `content_block_stop`, `message_delta` and `message_stop`, with `ping` "
        "in every silence."
    ),
}
OF_BODY["MessagesRequest"] = OF_BODY["CountTokensRequest"] = _ANTHROPIC


def describe(body: str, name: str) -> Parameter | None:
    """The description of a parameter of the body whose model has the name `body`."""
    return OF_BODY.get(body, {}).get(name) or DESCRIPTIONS.get(name)
