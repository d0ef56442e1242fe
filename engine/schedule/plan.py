"""What the scheduler decided for one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.schedule.request import Request


@dataclass(slots=True)
class StepPlan:
    """Parallel lists, one entry for each scheduled request: those with one token first.

    A request's row samples when the step computes the last token known of it; a partial prompt
    computes without sampling.
    """

    requests: list[Request] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # position of the first token to compute
    num_tokens: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    num_repeats: int = 1  # above 1 all rows are single tokens that sample, and the device does so many steps at once

    def add(self, request: Request, start: int, num_tokens: int, samples: bool) -> None:
        self.requests.append(request)
        self.starts.append(start)
        self.num_tokens.append(num_tokens)
        self.samples.append(samples)

    def extend(self, other: StepPlan) -> None:
        """Appends another plan's rows behind this one's."""
        self.requests += other.requests
        self.starts += other.starts
        self.num_tokens += other.num_tokens
        self.samples += other.samples

    @property
    def num_rows(self) -> int:
        return len(self.requests)

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(self.num_tokens) * self.num_repeats
