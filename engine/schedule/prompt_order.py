"""Which prompts get a step's budget first."""

from __future__ import annotations

from engine.schedule.request import Request

TURNS_PER_ROUND = 4  # the last turn of each round goes to the prompt that has waited longest


class PromptOrder:
    """Shortest remaining prompt first, with a share for those that are passed over.

    Short prompts overtake long ones, which makes the mean time to the first token the shortest (Schrage, "A Proof of
    the Optimality of the Shortest Remaining Processing Time Discipline", 1968). A long prompt is never stuck for
    ever: one turn in TURNS_PER_ROUND goes to the prompt whose last turn is longest ago. So of n prompts under way,
    each gets a chunk at least once in about n * TURNS_PER_ROUND turns, whatever arrives.
    """

    def __init__(self) -> None:
        self._turn = 0

    def next_turn(self, prompts: list[Request]) -> list[Request]:
        """Begins a turn, which is a step with prompts; returns them in the order in which they get its budget."""
        self._turn += 1
        if len(prompts) < 2:
            return prompts
        if self._turn % TURNS_PER_ROUND == 0:
            return sorted(prompts, key=lambda request: (request.last_prompt_turn, request.order))
        return sorted(
            prompts,
            key=lambda request: (request.priority, request.num_tokens - request.num_computed_tokens, request.arrival),
        )

    def note(self, request: Request) -> None:
        """Notes that the request was admitted, or got some of the budget, in this turn."""
        request.last_prompt_turn = self._turn
