"""What a served model is for, and the refusals of what it is not for."""

from enum import StrEnum

from server.protocol.errors import ApiError
from server.serving.served_model import ServedModel


class Task(StrEnum):
    """What a model is for; the values are those of the setting and the wire names."""

    GENERATE = "generate"  # and embeddings, as every decoder
    EMBED = "embed"
    RERANK = "rerank"  # one score of a pair of texts
    CLASSIFY = "classify"  # a score for each of several labels


def task_of(model: ServedModel) -> Task:
    """The task of a loaded model, by what its files say; raises ApiError as `ServedModel.engine`."""
    info = model.engine.model_info
    if info.num_labels:
        return Task.RERANK if info.num_labels == 1 else Task.CLASSIFY
    return Task.EMBED if info.is_encoder else Task.GENERATE


_ROUTES = {
    Task.EMBED: "makes embeddings (/v1/embeddings)",
    Task.RERANK: "scores pairs of texts (/v1/rerank, /v1/score)",
    Task.CLASSIFY: "classifies texts (/classify)",
}


def refuse_generation(model: ServedModel) -> None:
    """Raises ApiError where the model generates no text."""
    task = task_of(model)
    if task is not Task.GENERATE:
        raise _refusal(model, f"{_ROUTES[task]} and generates no text")


def refuse_embeddings(model: ServedModel) -> None:
    """Raises ApiError where the model makes no embeddings."""
    task = task_of(model)
    if task in (Task.RERANK, Task.CLASSIFY):
        raise _refusal(model, f"{_ROUTES[task]} and makes no embeddings")


def refuse_pairs(model: ServedModel) -> None:
    """Raises ApiError where the model has no score of a pair of texts."""
    if task_of(model) is Task.CLASSIFY:
        raise _refusal(model, f"{_ROUTES[Task.CLASSIFY]} and has several labels in the place of a score")


def refuse_classes(model: ServedModel) -> None:
    """Raises ApiError where the model has no labels."""
    task = task_of(model)
    if task in (Task.GENERATE, Task.EMBED):
        raise _refusal(model, f"{_ROUTES.get(task, 'generates text')} and has no labels to classify with")


def _refusal(model: ServedModel, what: str) -> ApiError:
    return ApiError(f"the model {model.model_name} {what}", param="model", code="unsupported_task")
