"""How the chunks of a stream stand on the wire, one after the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Framing:
    """The constant bytes around each chunk of a stream. A chunk is JSON without line breaks."""

    before: bytes = b""
    after: bytes = b""
    opening: bytes = b""  # what shows that a stream lives before there is a token; readers skip it
    ping: bytes = b""  # what keeps a silent stream alive; readers skip it
    done: bytes = b""  # what follows the last chunk
    headers: Mapping[str, str] = field(default_factory=dict)  # of the HTTP response
    # An event of a resumable stream has its id between these two, in the place of its own first bytes.
    id_before: bytes = b"id: "
    id_after: bytes = b"\n"
    num_replaced: int = 0

    def frame(self, chunk: bytes) -> bytes:
        """`chunk` as it stands on the wire."""
        return self.before + chunk + self.after

    def with_id(self, event_id: bytes, event: bytes) -> bytes:
        """A framed event of a resumable stream, with its id."""
        return self.id_before + event_id + self.id_after + event[self.num_replaced :]


# Server-sent events (WHATWG HTML Living Standard, section 9.2), ended as OpenAI ends them.
SERVER_SENT_EVENTS = Framing(
    before=b"data: ",
    after=b"\n\n",
    opening=b": ping\n\n",
    ping=b": ping\n\n",
    done=b"data: [DONE]\n\n",
    headers={
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",  # or nginx collects the tokens of a whole buffer
    },
)

# A WebSocket (RFC 6455) frames its messages itself, pings by itself and closes by a message of its own.
MESSAGES = Framing()
