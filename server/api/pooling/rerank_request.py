"""The request body of /v1/rerank, /rerank and /v2/rerank, in the forms of Jina, Cohere and Hugging Face."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainValidator, PrivateAttr

from server.api.openai.token_requests import ModelQuery, as_truncation
from server.protocol.errors import invalid_value, shorten

MAX_DOCUMENTS = 2048  # of one request

_SWITCHES_OF_TEI = ("raw_scores", "return_text", "truncate")
_NAMES_OF_TEI = frozenset({"texts", *_SWITCHES_OF_TEI})

Truncation = Annotated[int, BeforeValidator(as_truncation, json_schema_input_type=int)]
MostTokens = Annotated[int, Field(ge=0)]  # to which a text is cut; 0: it is not


def text_of_document(value: Any, name: str) -> str:
    """A text, or that of an object with `text`; raises ValueError."""
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise ValueError(f"{name} has the entry {shorten(value)}; it must be a text or an object with text")
    return text


def _as_documents(value: Any, name: str = "documents") -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {shorten(value)}; it must be a list of 1 to {MAX_DOCUMENTS} texts")
    if len(value) > MAX_DOCUMENTS:
        raise ValueError(f"{name} has {len(value)} entries; at most {MAX_DOCUMENTS} are allowed")
    return [text_of_document(document, name) for document in value]


def _of_texts(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body of Text Embeddings Inference with the names of the other forms; raises ApiError."""
    fields = {name: value for name, value in body.items() if name not in _NAMES_OF_TEI}
    try:
        fields["documents"] = _as_documents(body["texts"], "texts")
    except ValueError as error:
        raise invalid_value(str(error), "texts") from error
    for name in _SWITCHES_OF_TEI:
        if not isinstance(body.get(name), bool | None):
            raise invalid_value(f"{name} is {shorten(body[name])}; it must be a boolean", name)
    fields["return_documents"] = body.get("return_text") is True
    fields["use_activation"] = body.get("raw_scores") is not True
    if body.get("truncate") is True:
        fields["truncate_prompt_tokens"] = -1
    return fields


class RerankRequest(ModelQuery):
    """A query, and documents to be ordered by how well they answer it."""

    query: str
    documents: Annotated[
        list[str], PlainValidator(_as_documents, json_schema_input_type=list[str] | list[dict[str, Any]])
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None  # all by default
    return_documents: bool | None = None
    max_tokens_per_doc: MostTokens | None = None  # Cohere's word, of documents alone
    max_tokens_per_query: MostTokens | None = None
    truncate_prompt_tokens: Truncation | None = None  # of query and document together
    use_activation: bool | None = None  # true by default
    _is_listed: bool = PrivateAttr(default=False)

    @classmethod
    def parse(cls, body: Any) -> Self:
        is_listed = isinstance(body, dict) and "texts" in body and "documents" not in body
        query = super().parse(_of_texts(body) if is_listed else body)
        query._is_listed = is_listed
        if not query.query:
            raise invalid_value("query is empty", "query")
        return query

    @property
    def is_listed(self) -> bool:
        """Whether the answer is Text Embeddings Inference's list of scores: its clients name the documents `texts`."""
        return self._is_listed
