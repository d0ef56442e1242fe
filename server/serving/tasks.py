"""What a served model is for, and the refusals of what it is not for."""

from server.protocol.errors import ApiError
from server.serving.served_model import ServedModel
from server.startup.model_task import Task, tasks_of


def task_of(model: ServedModel) -> Task:
    """The task of a loaded model, by the setting or else by its files; raises ApiError as `ServedModel.engine`."""
    stated, usual = model.settings.task, tasks_of(model.engine.model_info)[0]
    if stated is None:
        if model.text_model.pairs is not None:
            return Task.RERANK
        is_of_sentences = usual is Task.GENERATE and model.text_model.sentences is not None
        return Task.EMBED if is_of_sentences else usual
    return Task(stated)


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
    if model.engine.model_info.num_labels:
        raise _refusal(model, f"{_ROUTES[task_of(model)]} and makes no embeddings")


def refuse_pairs(model: ServedModel) -> None:
    """Raises ApiError where the model has no score of a pair of texts."""
    if model.engine.model_info.num_labels > 1 and model.text_model.pairs is None:
        raise _refusal(model, f"{_ROUTES[Task.CLASSIFY]} and has several labels in the place of a score")


def refuse_classes(model: ServedModel) -> None:
    """Raises ApiError where the model has no labels."""
    if not model.engine.model_info.num_labels:
        what = _ROUTES.get(task_of(model), "generates text")
        raise _refusal(model, f"{what} and has no labels to classify with")


def refuse_adapter(model: ServedModel, name: str | None) -> None:
    """Raises ApiError where a request for embeddings or scores names an adapter of the model."""
    if model.is_of_adapter(name):
        raise ApiError(
            f"{name} is an adapter, which generates text alone; embeddings and scores are those of {model.model_name}",
            param="model", code="unsupported_task",
        )  # fmt: skip


def _refusal(model: ServedModel, what: str) -> ApiError:
    return ApiError(f"the model {model.model_name} {what}", param="model", code="unsupported_task")
