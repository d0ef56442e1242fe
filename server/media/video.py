"""Videos in the messages of a conversation, as their frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.media.picture import Picture
from server.protocol.errors import ApiError

MAX_FRAMES = 128  # of all videos of a request
MAX_SECONDS = 1e6
MIN_FRAMES_A_SECOND, MAX_FRAMES_A_SECOND = 1e-6, 1000.0


@dataclass(frozen=True, slots=True)
class Video(Picture):
    """A video as a client has sent it."""

    frames: tuple[str, ...] = ()  # a data URL of each, or an address of http, https or file
    frames_a_second: float | None = None  # None: the model's usual number, unless there are times
    times: tuple[float, ...] = ()  # of the frames, in seconds; empty: they are evenly spaced

    @property
    def noun(self) -> str:
        return "video"

    @property
    def pictures(self) -> list[Picture]:
        """The frames, each of which errors name."""
        return [
            Picture(f"{self.path}.{self.kind}[{at}]", self.kind, url, self.detail, self.switches)
            for at, url in enumerate(self.frames)
        ]

    def seconds(self, usual_rate: float) -> list[float]:
        """When each frame is shown."""
        rate = self.frames_a_second or usual_rate
        return list(self.times) or [at / rate for at in range(len(self.frames))]

    def rate(self, usual_rate: float) -> float:
        """Frames a second, on average."""
        if self.times and self.times[-1] > self.times[0]:
            return (len(self.times) - 1) / (self.times[-1] - self.times[0])
        return self.frames_a_second or usual_rate


def refuse_too_many_frames(pictures: Sequence[Picture]) -> None:
    """Raises ApiError where the videos among some pictures have more than MAX_FRAMES."""
    num_frames = 0
    for video in pictures:
        num_frames += len(video.frames) if isinstance(video, Video) else 0
        if num_frames > MAX_FRAMES:
            raise ApiError(
                f"the videos of the request have more than {MAX_FRAMES} frames, the limit",
                param=video.path,
                code="too_many_frames",
            )
