"""The labels of a model that scores or classifies texts, and the function that its scores go through."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder

_ARCHITECTURE = "ForSequenceClassification"  # how the names end in transformers


class HeadActivation(StrEnum):
    """The function of a head's scores."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


@dataclass(frozen=True, slots=True)
class LabelHead:
    """Labels by their index, and the activation of their scores."""

    labels: tuple[str, ...]
    activation: HeadActivation
    of_classes: HeadActivation | None = None  # of a text's classes, where it is another one than of a pair's score

    def activate(self, scores: np.ndarray, *, are_classes: bool = False) -> np.ndarray:
        """float64[num_texts, num_labels] of raw scores of that shape."""
        wide = scores.astype(np.float64)
        match (self.of_classes if are_classes else None) or self.activation:
            case HeadActivation.IDENTITY:
                return wide
            case HeadActivation.SIGMOID:
                # Both branches are computed, and neither exponential may overflow.
                small = np.exp(-np.abs(wide))
                sigmoid: np.ndarray = np.where(wide >= 0, 1, small) / (1 + small)
                return sigmoid
            case HeadActivation.SOFTMAX:
                powers = np.exp(wide - wide.max(axis=1, keepdims=True))
                shares: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
                return shares


def usual_activation(num_labels: int) -> HeadActivation:
    """That of sentence-transformers and vLLM where a model says nothing."""
    return HeadActivation.SIGMOID if num_labels == 1 else HeadActivation.SOFTMAX


def read_label_head(folder: ModelFolder) -> LabelHead | None:
    """The head of a folder; None where its architecture has none. Raises ModelError."""
    config = folder.config
    names = config.value("architectures")
    if not isinstance(names, list) or not any(str(name).endswith(_ARCHITECTURE) for name in names):
        return None
    table = config.table("id2label")
    if table is None:
        labels = tuple(f"LABEL_{index}" for index in range(config.integer("num_labels", least=1) or 2))
    else:
        found = [table.text(str(index)) for index in range(len(table.names))]
        if any(label is None for label in found):
            raise config.error("id2label", "it must have a label for each number from 0")
        labels = tuple(label for label in found if label is not None)
    stated = _stated_activation(folder)
    if stated is not None:
        return LabelHead(labels, stated)
    match config.value("problem_type"):
        case "multi_label_classification":
            return LabelHead(labels, HeadActivation.SIGMOID)
        case "regression":
            # transformers shows its numbers as they are; sentence-transformers and vLLM do not where they score pairs.
            return LabelHead(labels, usual_activation(len(labels)), HeadActivation.IDENTITY)
        case _:
            return LabelHead(labels, usual_activation(len(labels)))


def _stated_activation(folder: ModelFolder) -> HeadActivation | None:
    """What sentence-transformers writes; raises ModelError where that is not served."""
    config = folder.config
    own = config.table("sentence_transformers")
    name = None if own is None else own.text("activation_fn")
    name = name or config.text("sbert_ce_default_activation_function")  # of older releases
    if name is None:
        return None
    kind = name.rpartition(".")[2].lower()
    if kind not in list(HeadActivation):
        raise ModelError(f"{config.path} asks for the activation {name}; it must be Identity, Sigmoid or Softmax")
    return HeadActivation(kind)
