"""Planning the prompts of a step: who is admitted, in which order, and how many tokens of each prompt are computed."""

from engine.schedule.admission import admit
from engine.schedule.live_requests import LiveRequests
from engine.schedule.request import Request
from engine.schedule.step_plan import StepPlan
from engine.schedule.step_time.step_costs import StepWork
from engine.schedule.step_time.token_budget import TokenBudget

TURNS_PER_ROUND = 4  # the last turn of each round goes to the prompt that has waited longest


class PromptOrder:
    """Shortest remaining prompt first, with a share for those that are passed over.

    This makes the mean time to the first token the shortest (Schrage, "A Proof of the Optimality of the Shortest
    Remaining Processing Time Discipline", 1968). One turn in TURNS_PER_ROUND goes to the prompt whose last turn is
    longest ago, so that of n prompts each gets a chunk about once in n * TURNS_PER_ROUND turns.
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


# Prompts that are admitted although this step has no budget for them. So a short prompt overtakes long ones that came
# before it, and yet not every waiting prompt holds pages.
_NUM_AHEAD = 8
# Share of other tenants' decode rows from which on a prompt makes room for them. A single stream of another tenant does
# not make many prompts wait longer for their first tokens.
_LEAST_SHARE_OF_OTHERS = 0.25


class PromptPlanner:
    """Shares the token budget of a step among prompts."""

    def __init__(self, requests: LiveRequests) -> None:
        self._requests = requests
        self._order = PromptOrder()

    def plan(
        self, under_way: list[Request], budget: TokenBudget, singles: StepPlan, chunks: StepPlan, *, may_begin: bool
    ) -> None:
        """Admits waiting requests and shares the budget among all prompts that are not computed to their end.

        Requests that wait for pages which this step computes may join it: a layer's keys and values are all written
        before any token attends. `singles` and `chunks` receive the rows of one and of several tokens.
        """
        admitted = self._admit(budget.num_tiles_left + _NUM_AHEAD - len(under_way), may_begin=may_begin)
        if not (under_way or admitted):
            return
        self._share(self._order.next_turn(under_way + admitted), budget, singles, chunks)
        while not budget.is_exhausted and self._requests.waiting:
            admitted = self._admit(budget.num_tiles_left, may_begin=may_begin)
            if not admitted:
                return
            self._share(admitted, budget, singles, chunks)

    def _admit(self, num_wanted: int, *, may_begin: bool) -> list[Request]:
        admitted = admit(self._requests, num_wanted, may_begin=may_begin)
        for request in admitted:
            self._order.note(request)
        return admitted

    def _share(self, prompts: list[Request], budget: TokenBudget, singles: StepPlan, chunks: StepPlan) -> None:
        """Gives each prompt, in this order, as much of the budget as it can use."""
        most_urgent = min((request.priority for request in singles.requests), default=0)
        for request in prompts:
            start, known = request.num_computed_tokens, request.num_tokens
            others = _others(request, singles) if budget.work.num_tiles == 0 else None
            if request.is_whole:
                num_tokens = budget.take_whole(known)
            else:
                # Nobody reads an embedding or a score as it is computed.
                is_patient = bool(request.poolings) or request.priority > most_urgent
                num_tokens = budget.take(known - start, start, others, is_patient=is_patient)
            if request.pictures:
                num_tokens = self._with_whole_pictures(request, num_tokens, budget)
            if num_tokens:
                end = start + num_tokens
                self._requests.grow(request, end)  # the pages are there, or promised
                plan = singles if num_tokens == 1 else chunks
                plan.add(request, start, num_tokens, end == known)
                self._order.note(request)
                self._requests.prefixes.expect(request, end)
                if request.pictures:
                    self._requests.note_planned(request, end)

    def _with_whole_pictures(self, request: Request, num_tokens: int, budget: TokenBudget) -> int:
        """So many tokens, or others, that no step ends within a picture whose tokens see each other; perhaps none."""
        pictures, start, known = self._requests.pictures, request.num_computed_tokens, request.num_tokens
        if pictures is None or not pictures.sees_both_ways or not num_tokens:
            return num_tokens
        end = request.before_picture(start + num_tokens)
        if end == known or end - start > 1:  # a piece of a prompt is never of one token
            return end - start
        whole = request.behind_picture(min(start + 2, known)) - start
        return whole if budget.take_rest(num_tokens, whole, start) else 0


def _others(request: Request, decoding: StepPlan) -> StepWork | None:
    """The decode rows of other tenants; None where they are too few for the prompt to make room for them."""
    rows = zip(decoding.requests, decoding.starts, strict=True)
    starts = [start for other, start in rows if other.tenant != request.tenant]
    makes_room = len(starts) >= max(_LEAST_SHARE_OF_OTHERS * len(decoding.requests), 1)
    return StepWork(len(starts), sum(starts)) if makes_room else None
