"""How the texts of a model become embeddings, by the files of sentence-transformers or the fields of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any

from engine.interface.errors import ModelError
from engine.interface.types import Pooling, Poolings
from engine.weights.formats.fields import MAX_INTEGER
from engine.weights.formats.model_folder import MODULES, JsonFile, ModelFolder
from server.text.tokenization.folder_metadata import TOKENIZER_CONFIG

SENTENCE_CONFIG = "config_sentence_transformers.json"
# Files with the limit of a text; their names are those of the classes that older releases had.
LIMITS = tuple(f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "xlm-roberta", "distilbert", "camembert"))
MAX_PROMPTS = 1_000  # of one model
# What such a file may say besides, with what it must be; null is always meant as nothing.
_SERVED_OF_LIMITS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"transformer_task": ("feature-extraction",), "query_expansion": (), "query_length": (), "document_length": ()}
)
# Prompts that a value of `input_type` means, of which a model has one by name at most.
PROMPTS_OF_INPUT_TYPE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "search_query": ("search_query", "query", "retrieval.query"),
        "search_document": ("search_document", "document", "passage", "retrieval.passage"),
        "query": ("query", "search_query", "retrieval.query"),
        "document": ("document", "passage", "search_document", "retrieval.passage"),
        "passage": ("passage", "document", "search_document", "retrieval.passage"),
        "classification": ("classification", "Classification"),
        "clustering": ("clustering", "Clustering", "separation"),
    }
)
_POOLINGS: Mapping[str, Pooling] = MappingProxyType(
    {
        "cls": Pooling.CLS,
        "max": Pooling.MAX,
        "mean": Pooling.MEAN,
        "mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
        "weightedmean": Pooling.WEIGHTED_MEAN,
        "lasttoken": Pooling.LAST,
    }
)
# Those of older releases, in the order in which what they make of a text stands one behind the other.
_FLAGS: Mapping[str, Pooling] = MappingProxyType(
    {
        "pooling_mode_cls_token": Pooling.CLS,
        "pooling_mode_max_tokens": Pooling.MAX,
        "pooling_mode_mean_tokens": Pooling.MEAN,
        "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
        "pooling_mode_weightedmean_tokens": Pooling.WEIGHTED_MEAN,
        "pooling_mode_lasttoken": Pooling.LAST,
    }
)
_GGUF_POOLINGS = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
_GGUF_NO_POOLING, _GGUF_RANK = 0, 4


@dataclass(frozen=True, slots=True)
class SentenceEncoder:
    """What the makers of a model say of its embeddings."""

    pooling: Poolings
    max_tokens: int | None = None  # of a text; None: as many as the model computes
    prompts: Mapping[str, str] = field(default_factory=dict)  # what is put before a text, by name
    default_prompt: str = ""
    takes_dimensions: bool = False  # it was trained so that the first numbers of an embedding are one too
    dimensions: tuple[int, ...] = ()  # the lengths that it was trained for; none: any
    pools_prompts: bool = True  # whether the tokens of a prompt before a text are pooled with it

    def prompt_of_input_type(self, input_type: str) -> str:
        """The prompt that a value of `input_type` means; an empty one where the model has none."""
        names = PROMPTS_OF_INPUT_TYPE[input_type]
        return next((self.prompts[name] for name in names if name in self.prompts), "")


POOLINGS = tuple(pooling for pooling in Pooling if pooling is not Pooling.NONE)  # that make one vector of a text


def usual_pooling(sentences: SentenceEncoder | None, *, is_encoder: bool) -> Poolings:
    """How the makers of a model pool a text; of an encoder of which they say nothing, as sentence-transformers does."""
    if sentences is not None:
        return sentences.pooling
    return Pooling.MEAN if is_encoder else Pooling.LAST


def read_sentence_encoder(folder: ModelFolder) -> SentenceEncoder | None:
    """What a folder says; None where it says nothing, so that no encoder of sentences is meant. Raises ModelError."""
    modules = folder.modules()
    if not modules:
        return None
    pooling: Poolings | None = None
    pools_prompts, kinds = True, []
    for kind, path in modules:
        kinds.append(kind)
        match kind:
            case "Transformer" | "Normalize" | "Dense":
                pass  # embeddings have length 1 in any case, and the engine reads dense layers
            case "Pooling":
                pooling, pools_prompts = _pooling(folder, path)
            case _:
                raise ModelError(f"{folder.path / MODULES} has the module {kind}, which is not served")
    if pooling is None or kinds[0] != "Transformer":
        raise ModelError(f"{folder.path / MODULES} must begin with Transformer and have Pooling behind it")
    _refuse_unserved(folder)
    prompts, default = _prompts(folder)
    is_shortened, lengths = _dimensions(folder.config)
    return SentenceEncoder(pooling, _max_tokens(folder), prompts, default, is_shortened, lengths, pools_prompts)


def sentence_encoder_of_gguf(pooling_type: int | None) -> SentenceEncoder:
    """What a GGUF file of an encoder says; raises ModelError for a pooling that is not served."""
    if pooling_type in (None, _GGUF_NO_POOLING):
        return SentenceEncoder(Pooling.MEAN)
    if pooling_type == _GGUF_RANK:
        return SentenceEncoder(Pooling.CLS)
    if pooling_type not in _GGUF_POOLINGS:
        raise ModelError(f"pooling_type is {pooling_type}; it must be one of {sorted(_GGUF_POOLINGS)}")
    return SentenceEncoder(_GGUF_POOLINGS[pooling_type])


def _pooling(folder: ModelFolder, place: str) -> tuple[Poolings, bool]:
    """How texts are pooled, and whether their prompts are too."""
    name = f"{place}/config.json"
    config = folder.json(name)
    if config is None:
        raise ModelError(f"{folder.path} has no {name}")
    modes: Any = config.value("pooling_mode")  # of newer releases, which then read no flag
    if modes is None:
        poolings = tuple(pooling for flag, pooling in _FLAGS.items() if config.flag(flag)) or (Pooling.MEAN,)
    else:
        listed = modes if isinstance(modes, list) else [modes]
        are_known = all(isinstance(mode, str) and mode in _POOLINGS for mode in listed)
        if not are_known or not 1 <= len(listed) <= len(_POOLINGS):
            raise config.error("pooling_mode", f"it must be one or some of {', '.join(_POOLINGS)}")
        poolings = tuple(_POOLINGS[mode] for mode in listed)
    return poolings if len(poolings) > 1 else poolings[0], config.flag("include_prompt") is not False


def _prompts(folder: ModelFolder) -> tuple[Mapping[str, str], str]:
    config = folder.json(SENTENCE_CONFIG) or JsonFile(folder.path / SENTENCE_CONFIG, {})
    table = config.table("prompts")
    names = () if table is None else table.names
    if len(names) > MAX_PROMPTS:
        raise ModelError(f"{config.path}: prompts has {len(names)} entries; at most {MAX_PROMPTS} are allowed")
    prompts = {name: text for name in names if table is not None and (text := table.text(name)) is not None}
    default = config.text("default_prompt_name")
    if default is not None and default not in prompts:
        raise config.error("default_prompt_name", "it must be one of prompts")
    return MappingProxyType(prompts), "" if default is None else prompts[default]


def _max_tokens(folder: ModelFolder) -> int | None:
    """The limit of a text. Where sentence-transformers' own file has none, it is that of the tokenizer."""
    for config in _limit_files(folder):
        most = config.integer("max_seq_length", least=2)
        if most is not None:
            return most
    tokenizer = folder.json(TOKENIZER_CONFIG)
    most = None if tokenizer is None else tokenizer.value("model_max_length")
    # transformers writes a number of thirty digits where there is no limit.
    return most if type(most) is int and 2 <= most <= MAX_INTEGER else None


def lowers_texts(folder: ModelFolder) -> bool:
    """Whether sentence-transformers is told to lower the capitals of texts, whatever the tokenizer does."""
    return any(config.flag("do_lower_case") is True for config in _limit_files(folder))


def _limit_files(folder: ModelFolder) -> Iterator[JsonFile]:
    """The first of LIMITS that is there; none if the folder has none."""
    files = (folder.json(name) for name in LIMITS)
    return islice((config for config in files if config is not None), 1)


def _refuse_unserved(folder: ModelFolder) -> None:
    for config in _limit_files(folder):
        for key, served in _SERVED_OF_LIMITS.items():
            if config.value(key) not in (None, *served):
                raise config.error(key, f"it must be {' or '.join(served)}" if served else "this is not served")


def _dimensions(config: JsonFile) -> tuple[bool, tuple[int, ...]]:
    lengths: Any = config.value("matryoshka_dimensions")
    if lengths is None:
        return config.flag("is_matryoshka") is True, ()
    if not isinstance(lengths, list) or not all(type(length) is int and length > 0 for length in lengths):
        raise config.error("matryoshka_dimensions", "it must list numbers above 0")
    return True, tuple(lengths)
