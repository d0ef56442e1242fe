"""What a model is for, by its files and by the setting `task`."""

from enum import StrEnum
from typing import Protocol


class Task(StrEnum):
    """What a model is for; the values are those of the setting and the wire names."""

    GENERATE = "generate"  # and embeddings, as every decoder
    EMBED = "embed"
    RERANK = "rerank"  # one score of a pair of texts
    CLASSIFY = "classify"  # a score for each of several labels


class HasTasks(Protocol):
    """What says of a model what it is for."""

    @property
    def is_encoder(self) -> bool: ...

    @property
    def is_headless(self) -> bool: ...

    @property
    def num_labels(self) -> int: ...


def tasks_of(info: HasTasks) -> tuple[Task, ...]:
    """The tasks that a model can have; the first is what its files say."""
    if info.num_labels == 1:
        return (Task.RERANK, Task.CLASSIFY)
    if info.num_labels:
        return (Task.CLASSIFY,) if info.is_encoder else (Task.CLASSIFY, Task.RERANK)
    if info.is_headless:
        return (Task.EMBED,)
    return (Task.EMBED, Task.RERANK) if info.is_encoder else (Task.GENERATE, Task.EMBED, Task.RERANK)


def check_task(stated: str | None, info: HasTasks) -> None:
    """Raises ValueError where the setting says what the model cannot do."""
    tasks = tasks_of(info)
    if stated is not None and stated not in tasks:
        raise ValueError(f"task is {stated}, and a model of this kind is for {' or '.join(tasks)}")
