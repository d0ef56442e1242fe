"""A limit on how many requests begin in one iteration of the asyncio loop."""

import asyncio

from server.admission.fair_queue import FairQueue

# To check a request, tokenise its prompt and queue it takes about a millisecond, for which the tokens of all streams
# wait, and three times as long where the engine's threads want all cores.
BEGUN_AT_ONCE = 4
PROBES_AT_ONCE = 1  # beside these: a probe takes little of that time, and a flood of probes may not take more either


class LoopThrottle:
    """Lets a few requests begin in each iteration of the loop, and the others in later ones; owners are served in turn.

    An iteration runs every task that was woken before it, and only then looks for tokens. So every request and every
    message calls `next` before anything is done for it.
    """

    def __init__(self, most: int = BEGUN_AT_ONCE, *, newest_first: bool = False) -> None:
        """`newest_first`: of one owner's that wait, the newest begins next, not the oldest."""
        self._most = most
        self._num_begun = 0  # in this iteration
        self._is_counting_soon = False  # `_count_anew` is scheduled
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(newest_first=newest_first)
        self._num_waiting = 0

    async def next(self, owner: str = "") -> None:
        """Returns when the caller may begin: at once, unless many have begun in this iteration or wait already."""
        if not self._is_counting_soon:
            self._count_anew_soon()
        if self._num_begun < self._most and not self._num_waiting:
            self._num_begun += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.put(owner, waiter)
        self._num_waiting += 1
        await waiter

    def _count_anew_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._count_anew)
        self._is_counting_soon = True

    def _count_anew(self) -> None:
        """Begins an iteration: wakes the next requests, but for those whose clients have left.

        Where it fails for want of memory, the next request has it called again.
        """
        self._is_counting_soon = False
        self._num_begun = 0
        while self._num_waiting and self._num_begun < self._most:
            waiter = self._waiting.take()
            self._num_waiting -= 1
            if not waiter.done():
                waiter.set_result(None)
                self._num_begun += 1
        if self._num_begun:
            self._count_anew_soon()  # behind those that were woken
