"""Which pictures' embeddings lie where in the device's array of them, and which are still to be encoded."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.interface.types import PromptPicture
from engine.schedule.request import Request


@dataclass(slots=True, eq=False)
class EncodeJob:
    """A picture that the encoder computes."""

    digest: bytes
    picture: PromptPicture
    positions: np.ndarray  # int32[num_tokens], where its embeddings lie in the array of them
    is_dropped: bool = False  # the cache was cleared since


@dataclass(slots=True, eq=False)
class _Entry:
    blocks: list[int]
    positions: np.ndarray  # int32[num_tokens], within these blocks
    job: EncodeJob | None  # None: it is encoded, or a step that is enqueued has encoded it by the time it is read
    num_users: int = 0  # requests that need it; without users it may be overwritten, those unused the longest first


class PictureCache:
    """A bounded cache of embeddings by the digests of their pictures, each of which takes some blocks of one size.

    A request holds all pictures that it has to compute, or none, so that no two requests wait for each other. It holds
    them from the turn in which there is room for them until the step that computes their last position is planned.
    """

    def __init__(self, num_blocks: int, block_size: int, first_token_id: int, *, sees_both_ways: bool = False) -> None:
        """
        Args:
            block_size: positions of a block; where all pictures have one size, those of a picture.
            first_token_id: the id that stands for the first embedding of block 0; those of the others follow.
            sees_both_ways: whether the tokens of a picture attend to those behind them too, which then are computed in
                the same step.
        """
        self.sees_both_ways = sees_both_ways
        self.num_blocks = num_blocks
        self.num_queries = 0  # pictures that were looked up
        self.num_hits = 0  # those that were there
        self._block_size = block_size
        self._first_token_id = first_token_id
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # the longest unused first
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held: dict[Request, list[bytes]] = {}
        self._jobs: deque[EncodeJob] = deque()

    def must_wait(self, request: Request, num_cached_tokens: int) -> bool:
        """Whether a picture that the request computes has no embeddings yet; makes room for them, and asks for them.

        Args:
            num_cached_tokens: tokens of the prompt that are not computed, because the prefix cache has them.
        """
        held = self._held.get(request, ())
        needed = [picture for picture in request.pictures if picture.end > num_cached_tokens]
        missing = {picture.digest: picture for picture in needed if picture.digest not in held}
        if missing and not self._hold(request, list(missing.values())):
            self.release(request)  # more pages may have left the prefix cache since it held the others
            return True
        return any(self._entries[picture.digest].job is not None for picture in needed)

    def place(self, request: Request, token_ids: np.ndarray) -> None:
        """Writes the ids of the embeddings that the request holds in the places of its pictures' tokens."""
        held = self._held.get(request, ())
        for picture in request.pictures:
            if picture.digest in held:
                positions = self._entries[picture.digest].positions
                token_ids[np.array(picture.positions)] = self._first_token_id + positions

    def release(self, request: Request) -> None:
        """Notes that the request needs no embeddings any more, or that it begins again."""
        for digest in self._held.pop(request, ()):
            entry = self._entries.get(digest)
            if entry is not None:
                entry.num_users -= 1
                self._entries.move_to_end(digest)

    def next_job(self) -> EncodeJob | None:
        """The next picture to encode; None where there is none. `encoded` says when its embeddings may be read."""
        while self._jobs:
            job = self._jobs.popleft()
            if self._entries[job.digest].num_users:
                return job
            self._free += self._entries.pop(job.digest).blocks  # whoever wanted it has left
        return None

    def encoded(self, job: EncodeJob) -> None:
        """Notes that all steps from now on find the embeddings of a job in their place."""
        if not job.is_dropped:
            self._entries[job.digest].job = None

    def put_back(self, job: EncodeJob) -> None:
        """Notes that a job was not done after all, so that it is the next one again."""
        if not job.is_dropped:
            self._jobs.appendleft(job)

    def clear(self) -> None:
        """Forgets all embeddings, which waiting requests ask for again. No running request may hold some."""
        for entry in self._entries.values():
            if entry.job is not None:
                entry.job.is_dropped = True
        self._entries.clear()
        self._held.clear()
        self._jobs.clear()
        self._free = list(range(self.num_blocks - 1, -1, -1))

    @property
    def num_held(self) -> int:
        """Requests that hold embeddings."""
        return len(self._held)

    def _hold(self, request: Request, pictures: Sequence[PromptPicture]) -> bool:
        """Holds pictures, of which those that are not there get blocks; False where there is no room for all."""
        new = [picture for picture in pictures if picture.digest not in self._entries]
        kept = {picture.digest for picture in pictures}
        num_missing = sum(map(self._blocks_of, new)) - len(self._free)
        unused = []
        for digest, entry in self._entries.items():
            if num_missing <= 0:
                break
            if entry.num_users == 0 and entry.job is None and digest not in kept:
                unused.append(digest)
                num_missing -= len(entry.blocks)
        if num_missing > 0:
            return False
        for digest in unused:
            self._free += self._entries.pop(digest).blocks
        for picture in new:
            blocks = [self._free.pop() for _ in range(self._blocks_of(picture))]
            positions = np.array(blocks, np.int32)[:, None] * self._block_size + np.arange(self._block_size)
            job = EncodeJob(picture.digest, picture, positions.reshape(-1)[: picture.num_tokens])
            self._entries[picture.digest] = _Entry(blocks, job.positions, job)
            self._jobs.append(job)
        held = self._held.setdefault(request, [])
        for picture in pictures:
            self._entries[picture.digest].num_users += 1
            held.append(picture.digest)
        self.num_queries += len(pictures)
        self.num_hits += len(pictures) - len(new)
        return True

    def _blocks_of(self, picture: PromptPicture) -> int:
        return -(-picture.num_tokens // self._block_size)
