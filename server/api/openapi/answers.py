"""Models of responses for the OpenAPI document, with which tests validate real responses."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Base of all response models."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PromptTokensDetails(Answer):
    cached_tokens: int


class CompletionTokensDetails(Answer):
    reasoning_tokens: int


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


class Timings(Answer):
    """Timings of an answer, in milliseconds, and the rate of its tokens."""

    time_to_first_token_ms: float
    queue_time_ms: float
    generation_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: Literal["stop", "length", "abort", "timeout"] | None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(Answer):
    """The response of /v1/completions, and each event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    metrics: Timings | None = None
    kv_transfer_params: None = None  # which vLLM sends always


class CalledFunction(Answer):
    name: str | None = None
    arguments: str


class AnsweredCall(Answer):
    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class AnswerMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same under its newer name
    tool_calls: list[AnsweredCall] | None = None
    function_call: CalledFunction | None = None  # where the request had `functions`


class ChatChoice(Answer):
    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call", "abort", "timeout"]
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(Answer):
    """The response of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: Timings | None = None
    kv_transfer_params: None = None  # which vLLM sends always
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None


class AnswerDelta(Answer):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same under its newer name
    tool_calls: list[AnsweredCall] | None = None
    function_call: CalledFunction | None = None


class ChunkChoice(Answer):
    index: int
    delta: AnswerDelta
    logprobs: dict[str, Any] | None = None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call", "abort", "timeout"] | None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(Answer):
    """Each event of a stream of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    metrics: Timings | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None


class ErrorDetails(Answer):
    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | None = None  # of a prompt that is too long, as is the next
    n_ctx: int | None = None


class Error(Answer):
    """OpenAI's shape of an error; `param` names the parameter."""

    error: ErrorDetails


class OllamaError(Answer):
    """Ollama's shape of an error: a sentence."""

    error: str


class LlamaErrorDetails(Answer):
    code: int
    message: str
    type: str
    param: str | None


class LlamaError(Answer):
    """llama.cpp's shape of an error; `code` is the HTTP status."""

    error: LlamaErrorDetails


class ResponseEvent(BaseModel):
    """One event of the stream of a response; its other fields follow from the type."""

    type: str
    sequence_number: int


class ModelCard(BaseModel):
    """A served model; one that was never loaded has only a name and a state."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str | None = None  # the model's own name, where `id` is an alias or a preset
    state: str
    status: dict[str, Any]  # the state as llama.cpp names it, in `value`
    loading_stage: str | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    weight_bytes: int | None = None  # of memory
    cache_bytes: int | None = None  # of memory, at most, for the keys and values of requests
    sampling_defaults: dict[str, float] | None = None
    task: Literal["embed", "rerank", "classify"] | None = None  # of a model that generates no text


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelCard]
    models: list[dict[str, Any]]  # the catalogue that Codex reads


class PullProgress(Answer):
    stage: str
    completed: int  # bytes of this stage
    total: int  # 0: not known yet


class AvailableModel(Answer):
    id: str
    object: Literal["model"]
    source: Literal["built-in", "hub"]
    is_here: bool
    is_served: bool
    size: int | None
    received: int
    license: str | None
    summary: str | None
    memory_bytes: int | None
    pull: PullProgress | None


class AvailableModels(Answer):
    object: Literal["list"]
    data: list[AvailableModel]


class McpServerName(Answer):
    id: str
    object: Literal["mcp_server"]


class McpServers(Answer):
    object: Literal["list"]
    data: list[McpServerName]


class Embedding(Answer):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Answer):
    prompt_tokens: int
    total_tokens: int


class Embeddings(Answer):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class RankedDocument(Answer):
    text: str


class RankedResult(Answer):
    index: int
    relevance_score: float
    document: RankedDocument | None = None


class Ranking(Answer):
    id: str
    object: Literal["list"]
    model: str
    usage: EmbeddingUsage
    results: list[RankedResult]


class PairScore(Answer):
    index: int
    object: Literal["score"]
    score: float


class PoolingUsage(EmbeddingUsage):
    completion_tokens: int


class Scores(Answer):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: PoolingUsage


class TextClass(Answer):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(Answer):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[TextClass]
    usage: PoolingUsage


class InputTokens(Answer):
    """The response of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Tokens(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class RenderedSampling(Answer):
    n: int
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float


class RenderedPrompt(Answer):
    request_id: str
    model: str
    token_ids: list[int]
    sampling_params: RenderedSampling
    priority: int
    cache_salt: str | None


class DetokenizedText(Answer):
    prompt: str
    content: str  # the same text, under llama.cpp's name
    token_texts: list[str] | None = None


class Cancellation(Answer):
    id: str
    object: Literal["request.cancellation"]
    cancelled: bool


class DeletedStream(Answer):
    id: str
    object: Literal["stream.deleted"]
    deleted: bool


class State(BaseModel):
    """The state after a change."""

    state: str


class Readiness(BaseModel):
    """Whether requests are accepted, and the reason if not."""

    status: str
    detail: str


class Version(Answer):
    name: Literal["eagre"]
    version: str


class LimitsOfKey(Answer):
    """The limits of a key; null is none."""

    requests_per_second: float | None
    max_streams: int | None
    tokens_per_minute: int | None


class KeyUsage(Answer):
    """What the keys of one name have used."""

    object: Literal["key.usage"]
    name: str
    num_model_requests: int
    num_refused_requests: int
    input_tokens: int
    output_tokens: int
    input_cached_tokens: int
    num_streams: int
    limits: LimitsOfKey


class KeyUsages(Answer):
    object: Literal["list"]
    data: list[KeyUsage]
