"""What a model's files say of text: tokenizer, chat template, default sampling parameters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog

from engine.interface.errors import ModelError, naming
from engine.weights.formats.model_folder import ModelFolder
from sampling.host.params import InvalidParameter, SamplingParams
from server.media.picture_format import PictureFormat
from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.folder_tokenizer import load_folder_tokenizer
from server.text.infill import Infill, find_infill
from server.text.label_head import LabelHead, read_label_head, usual_activation
from server.text.pair_prompt import AnswerTokens, PairPrompt, pair_prompt_of, read_answer_tokens
from server.text.sentence_encoder import SentenceEncoder, read_sentence_encoder, sentence_encoder_of_gguf
from server.text.tokenization.folder_metadata import FolderMetadata, read_folder_metadata
from server.text.tokenization.gguf_metadata import GgufMetadata, read_gguf_metadata
from server.text.tokenization.native_errors import NativeLibraryError, panics_as_errors
from server.text.tokenizer import Tokenizer

log: structlog.stdlib.BoundLogger = structlog.get_logger("eagre")


# Fields of SamplingParams. Those of a `generation_config.json` have the same names.
PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model as the routes see it: a name, a tokenizer and, for chat models, a chat template."""

    name: str  # the name under which it is served
    path: Path
    context_length: int  # tokens the model was trained for, prompt and output together
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None if the model has none
    sampling_defaults: Mapping[str, Any]  # numbers; fields of SamplingParams, for requests that do not give them
    infill: Infill | None = None  # how the model is shown a gap to fill; None if it has no tokens for that
    sentences: SentenceEncoder | None = None  # how texts become embeddings; None if the files do not say it
    head: LabelHead | None = None  # of a model that scores or classifies texts; None if the files have none
    pairs: PairPrompt | None = None  # how a decoder that scores pairs is shown them
    answers: AnswerTokens | None = None  # of a decoder that scores a pair by the token that follows it
    pictures: PictureFormat | None = None  # how it takes pictures; None: it reads text alone
    ignores_media: bool = False  # whether notes stand for pictures that the model cannot see, in the place of an error

    @classmethod
    def load(
        cls,
        path: Path,
        name: str | None = None,
        card: Mapping[str, int | float] | None = None,
        chat_template: str | None = None,
    ) -> TextModel:
        """Reads the tokenizer and the like of a GGUF file or a folder in Hugging Face's layout; raises ModelError.

        Args:
            name: by default the name of the folder, or of the file without its suffix.
            card: the sampling that the model's card recommends, for what its files do not state.
            chat_template: the source of a template to use instead of the model's own ones.
        """
        with naming(path):
            try:
                with panics_as_errors("the tokenizer's library"):
                    model = (
                        cls._load_folder(path, chat_template) if path.is_dir() else cls._load_gguf(path, chat_template)
                    )
            except NativeLibraryError as error:
                raise ModelError(f"the tokenizer is damaged, or of a kind that is not known: {error}") from error
        recommended = sampling_defaults([("the model's card", card or {}), (str(path), model.sampling_defaults)])
        return replace(model, name=name or model.name, sampling_defaults=recommended)

    def with_defaults(self, sampling: Mapping[str, int | float], variables: Mapping[str, Any]) -> TextModel:
        """This model with other sampling, and other variables of its chat template, for requests that give none."""
        template = self.chat_template
        return replace(
            self,
            sampling_defaults=MappingProxyType({**self.sampling_defaults, **sampling}),
            chat_template=None if template is None else template.with_defaults(variables),
        )

    @classmethod
    def _load_gguf(cls, path: Path, own_template: str | None) -> TextModel:
        metadata = read_gguf_metadata(path)

        def text_of(token_id: int | None) -> str | None:
            return None if token_id is None else metadata.tokens[token_id]

        template = _chat_template(
            metadata, own_template, text_of(metadata.bos_token_id), text_of(metadata.eos_token_id)
        )
        tokenizer = Tokenizer.from_gguf(metadata)
        infill = find_infill(metadata.tokens, metadata.infill_ids)
        sentences = None
        if metadata.tokenizer_model == "bert" or metadata.pooling_type is not None:
            sentences = sentence_encoder_of_gguf(metadata.pooling_type)
        head, pairs = None, None
        if metadata.rerank_template is not None:
            pairs, sentences = PairPrompt.parse(metadata.rerank_template), None
        if metadata.output_labels:
            head = LabelHead(metadata.output_labels, usual_activation(len(metadata.output_labels)))
        return cls(
            path.stem, path, metadata.context_length, tokenizer, template, metadata.sampling, infill, sentences, head,
            pairs,
        )  # fmt: skip

    @classmethod
    def _load_folder(cls, path: Path, own_template: str | None) -> TextModel:
        folder = ModelFolder(path)
        metadata = read_folder_metadata(folder)
        template = _chat_template(metadata, own_template, metadata.bos_token, metadata.eos_token)
        tokenizer = load_folder_tokenizer(folder, metadata)
        name = Path(os.path.abspath(path)).name  # so "." has a name too, and a link keeps its own
        infill = find_infill(tokenizer.tokens)
        head, answers = read_label_head(folder), read_answer_tokens(folder)
        sentences = read_sentence_encoder(folder) if head is None and answers is None else None
        pairs = None if answers is None else pair_prompt_of(template)
        return cls(
            name, path, metadata.context_length, tokenizer, template, metadata.sampling, infill, sentences, head, pairs,
            answers,
        )  # fmt: skip


def _chat_template(
    metadata: GgufMetadata | FolderMetadata, own: str | None, bos_token: str | None, eos_token: str | None
) -> ChatTemplate | None:
    source = metadata.chat_template if own is None else own
    variants = metadata.template_variants if own is None else {}
    if source is None:
        return None
    try:
        template = ChatTemplate(source, bos_token=bos_token or "", eos_token=eos_token or "", variants=variants)
        template.detect_content_format()
        return template
    except ChatTemplateError as error:
        raise ModelError(str(error)) from error


def sampling_defaults(sources: Iterable[tuple[str, Mapping[str, Any]]]) -> Mapping[str, Any]:
    """The valid fields of SamplingParams in `sources`, of which the last wins; invalid ones are logged."""
    defaults: dict[str, Any] = {}
    for source, values in sources:
        for name in PARAMETERS:
            value = values.get(name)
            if value is None:
                continue
            try:
                SamplingParams(**{name: value})
            except InvalidParameter as error:
                log.warning("sampling_default_ignored", source=source, reason=str(error))
            else:
                defaults[name] = value
    return MappingProxyType(defaults)
