"""The request body of /v1/rerank, /rerank and /v2/rerank, in Jina's and Cohere's forms."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainValidator

from server.api.openai.token_requests import ModelQuery, as_truncation
from server.protocol.errors import invalid_value, shorten

MAX_DOCUMENTS = 2048  # of one request

Truncation = Annotated[int, BeforeValidator(as_truncation, json_schema_input_type=int)]


def text_of_document(value: Any, name: str) -> str:
    """A text, or that of an object with `text`; raises ValueError."""
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise ValueError(f"{name} has the entry {shorten(value)}; it must be a text or an object with text")
    return text


def _as_documents(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"documents is {shorten(value)}; it must be a list of 1 to {MAX_DOCUMENTS} texts")
    if len(value) > MAX_DOCUMENTS:
        raise ValueError(f"documents has {len(value)} entries; at most {MAX_DOCUMENTS} are allowed")
    return [text_of_document(document, "documents") for document in value]


class RerankRequest(ModelQuery):
    """A query, and documents to be ordered by how well they answer it."""

    query: str
    documents: Annotated[
        list[str], PlainValidator(_as_documents, json_schema_input_type=list[str] | list[dict[str, Any]])
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None  # all by default
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None  # Cohere's word, of documents alone
    truncate_prompt_tokens: Truncation | None = None  # of query and document together
    use_activation: bool | None = None  # true by default

    @classmethod
    def parse(cls, body: Any) -> Self:
        query = super().parse(body)
        if not query.query:
            raise invalid_value("query is empty", "query")
        return query
