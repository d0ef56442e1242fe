"""The request body of /v1/score and /score, in vLLM's form."""

from typing import Annotated, Any, Self

from pydantic import PlainValidator

from server.api.openai.token_requests import ModelQuery
from server.api.pooling.rerank_request import MAX_DOCUMENTS, MostTokens, Truncation, text_of_document
from server.protocol.errors import invalid_value


def _as_texts(value: Any) -> list[str]:
    texts = value if isinstance(value, list) else [value]
    if not 1 <= len(texts) <= MAX_DOCUMENTS:
        raise ValueError(f"there are {len(texts)} texts; their number must be from 1 to {MAX_DOCUMENTS}")
    return [text_of_document(text, "the list") for text in texts]


Texts = Annotated[list[str], PlainValidator(_as_texts, json_schema_input_type=str | list[str])]


class ScoreRequest(ModelQuery):
    """Pairs of texts: one with each of several, or several with as many; both names of the fields are vLLM's."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    max_tokens_per_doc: MostTokens | None = None  # of the second texts
    max_tokens_per_query: MostTokens | None = None  # of the first ones
    truncate_prompt_tokens: Truncation | None = None
    use_activation: bool | None = None  # true by default

    @classmethod
    def parse(cls, body: Any) -> Self:
        query = super().parse(body)
        for first, second in (("text_1", "queries"), ("text_2", "documents")):
            if (getattr(query, first) is None) == (getattr(query, second) is None):
                raise invalid_value(f"give either {first} or {second}", first)
        first_texts, second_texts = query.pairs
        if len(first_texts) not in (1, len(second_texts)):
            raise invalid_value(
                f"there are {len(first_texts)} first texts and {len(second_texts)} second ones; there must be one "
                "first text, or as many as second ones",
                "text_1",
            )
        return query

    @property
    def pairs(self) -> tuple[list[str], list[str]]:
        """The first and the second texts."""
        return self.text_1 or self.queries or [], self.text_2 or self.documents or []
