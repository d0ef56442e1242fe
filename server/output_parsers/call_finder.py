"""Finds calls that a model writes otherwise than in its own syntax: in JSON, Python, ReAct or tags, in any wrapper.

Such a call has the name of a tool that is offered and named arguments. It counts at the beginning or at the end of an
answer; what stands in the middle of prose stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.output_parsers.reading.parser_events import ContentDelta, ToolEvent, merged
from server.output_parsers.reading.tool_call_reader import NAMESPACES, NotAToolCall, ToolCallReader
from server.output_parsers.tool_parser import PIECE
from server.output_parsers.wrapped_calls import ACTION, OBSERVATION, call_within_code, wrapped_call

_TRIGGER = r"[{\[<`]"
_FENCE = re.compile(r"(?:```|~~~)(?P<language>[A-Za-z0-9_+-]{0,16})\s{0,64}")
_FENCE_END = re.compile("```|~~~")
_CLOSER = re.compile(r"</[A-Za-z0-9_|-]{1,40}>|<\|[A-Za-z0-9_]{1,40}\|>|\[(?:/|END_)[A-Z_]{1,40}\]")
_PART_OF_CLOSER = re.compile(
    r"<(?:/[A-Za-z0-9_|-]{0,40}|\|[A-Za-z0-9_]{0,40}\|?)?|\[(?:/[A-Z_]{0,40}|E|EN|END|END_[A-Z_]{0,40})"
)
_WRAPPER = re.compile(r"(?:(?:```|~~~)[A-Za-z0-9_+-]*\s*)?(?:<[A-Za-z0-9_|-]*>?\s*)*\[?\s*|`{1,2}|~{1,2}")
_MAX_SPACE = 64  # behind a word that may stand behind a call
_ACTION = re.compile(rf"[ \t]*(?={re.escape(ACTION)})")
_BEGIN_IN_LINE = re.compile(rf"(?={_TRIGGER})")
_BEGIN_IN_CODE = re.compile(r"(?=[{\[<])")
_FENCE_LINE = re.compile(r"[ \t]*(?P<mark>```|~~~)(?P<rest>.*)", re.DOTALL)
_MAY_BE_FENCE = re.compile(r"[ \t]*[`~]")
_MAX_LINE = 128  # characters of a line by which a fence is known


class CallFinder:
    """Splits such calls from the text of one answer: text goes in, in pieces of any size, events come out.

    At the beginning of an answer, calls are emitted as they come. Behind text, they are held back until the answer
    ends with them, or goes on and so shows that they are text.

    Args:
        schemas: of the arguments of each tool, by its name.
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        # What a call may begin with at the beginning of a line.
        self._heads = (ACTION, "~~~", *(f"{space}{name}(" for name in schemas for space in ("", *NAMESPACES)))
        heads = "|".join(map(re.escape, self._heads))
        self._head = re.compile(rf"[ \t]*(?={heads})")
        self._begin_of_call = re.compile(rf"(?={_TRIGGER})|(?<=\n)[ \t]*(?={heads})")
        self._first_chars = frozenset(head[0] for head in self._heads)
        self._is_line_start = True
        self._line = ""  # the beginning of the last line of the text so far
        self._fence = ""  # that is open in the text so far: what stands in it, and is no JSON, is code of an answer
        self._call: ToolCallReader | None = None
        self._raw: list[str] = []  # of the call that is being read, until it is certain
        self._held = ""  # text that may yet belong to the beginning or the end of a call
        self._has_brace = False  # an object may be open around a call
        self._has_text = False  # something other than white space and calls has come
        self._space: list[str] = []  # white space at the beginning, which belongs to the text if there is one
        self._follows_call = False
        # Behind text: the events of the calls that the answer may end with, and their text.
        self._waiting: list[ToolEvent] = []
        self._waiting_text: list[str] = []
        self.has_cut_call = False

    def feed(self, text: str) -> Sequence[ToolEvent]:
        """The events that have become certain with `text`."""
        events: list[ToolEvent] = []
        for start in range(0, len(text), PIECE):
            rest = text[start : start + PIECE]
            while rest:
                rest = self._outside(rest, events, is_last=False) if self._call is None else self._inside(rest, events)
        return merged(events)

    def flush(self) -> Sequence[ToolEvent]:
        """The events of what was held back, once no more text can come."""
        events: list[ToolEvent] = []
        text, self._held = self._held, ""
        while text:
            text = self._outside(text, events, is_last=True) if self._call is None else self._inside(text, events)
        call, self._call = self._call, None
        last = () if call is None else call.flush()
        if call is not None and call.has_started:
            (self._waiting if self._has_text else events).extend(last)
            self.has_cut_call = self.has_cut_call or call.has_open_call
        elif call is not None:
            self._release("".join(self._raw), events)
        events += self._waiting
        self._waiting, self._waiting_text = [], []
        if self._space and not self._follows_call:
            events.append(ContentDelta("".join(self._space)))
        self._space = []
        return merged(events)

    def interrupt(self) -> Sequence[ToolEvent]:
        """`flush` where a call in the model's own syntax comes, behind which the answer may go on."""
        if self._call is not None and not self._call.has_started and _WRAPPER.fullmatch("".join(self._raw)):
            self._call = None  # a wrapper around the other call
        self._space = []
        events = self.flush()
        self._follows_call, self._has_text = True, False
        self._line = self._fence = ""
        return events

    # ------------------------------------------------------------------------ between calls

    def _outside(self, text: str, events: list[ToolEvent], *, is_last: bool) -> str:
        """Takes text up to the beginning of what may be a call; returns what follows it."""
        text, self._held = self._held + text, ""
        if self._follows_call:
            return self._behind_call(text, events, is_last=is_last)
        if self._fence or _MAY_BE_FENCE.match(self._line):  # the next line shows whether this is code
            return self._in_line(text, events, is_last=is_last)
        found = self._head.match(text) if self._is_line_start else None
        found = found or self._begin_of_call.search(text)
        if found is not None:
            self._emit(text[: found.end()], events)
            return self._begin(text[found.end() :])
        certain = len(text) if is_last else self._begin_of_head(text)
        self._held = text[certain:]
        self._emit(text[:certain], events)
        return ""

    def _in_line(self, text: str, events: list[ToolEvent], *, is_last: bool) -> str:
        """`_outside` for the rest of a line of code or of a fence, in which no call in Python begins."""
        end = text.find("\n") + 1 or len(text)
        found = None
        if self._fence and self._is_line_start:
            last = text[:end].lstrip(" \t")
            if last and ACTION.startswith(last) and not is_last and last != ACTION:
                self._held = last
                self._emit(text[: end - len(last)], events)
                return ""
            found = _ACTION.match(text)
        found = found or (_BEGIN_IN_CODE if self._fence else _BEGIN_IN_LINE).search(text, 0, end)
        if found is not None:
            self._emit(text[: found.end()], events)
            return self._begin(text[found.end() :])
        self._emit(text[:end], events)
        return text[end:]

    def _begin_of_head(self, text: str) -> int:
        """Where the last line may become the beginning of a call; the length of `text` where it cannot."""
        line = text.rfind("\n") + 1
        if line or self._is_line_start:
            last = text[line:].lstrip(" \t")
            if self._may_begin(last):
                return len(text) - len(last)
        return len(text)

    def _may_begin(self, text: str) -> bool:
        return not self._fence and text[:1] in self._first_chars and any(head.startswith(text) for head in self._heads)

    def _behind_call(self, text: str, events: list[ToolEvent], *, is_last: bool) -> str:
        """Leaves out what closes a call or separates it from the next one."""
        rest = text.lstrip()
        if not rest:
            self._keep(text)
            return ""
        if rest[0] in ",;]" or (rest[0] == "}" and not self._has_brace):  # some models write a brace too many
            self._keep(text[: len(text) - len(rest) + 1])
            return rest[1:]
        closer, fence = _CLOSER.match(rest), _FENCE.match(rest)
        is_open = closer is None and (
            rest in ("`", "``", "~", "~~", "[")
            or _PART_OF_CLOSER.fullmatch(rest) is not None
            or (fence is not None and fence.end() == len(rest))
        )  # it may close the call, or open the next one
        if is_open and not (is_last and rest == "["):
            if is_last:
                self._keep(text)
            else:
                self._held = text
            return ""
        is_head = not self._fence and self._head.match(rest) is not None
        inner = "" if fence is None or fence["language"] else rest[fence.end() :]
        if inner.startswith("~"):
            inner = ""
        is_inner = not self._fence and self._head.match(inner) is not None
        may_become = (self._may_begin(rest) or _may_observe(rest)) and not is_head
        if not is_last and (may_become or (self._may_begin(inner) and not is_inner)):
            self._held = text
            return ""
        if rest.rstrip() == OBSERVATION and len(rest) <= _MAX_SPACE:  # the model stops where the result would stand
            self._keep(text)
            return ""
        opens_fence = fence is not None and (fence["language"] or inner[:1] in ("{", "[", "<") or is_inner)
        if fence is not None and not opens_fence:
            closer = _FENCE_END.match(rest)
        if closer is not None:
            self._keep(text[: len(text) - len(rest) + closer.end()])
            return rest[closer.end() :]
        if rest[0] in "{[<`" or is_head:
            self._keep(text[: len(text) - len(rest)])
            return self._begin(rest)
        self._follows_call = self._is_line_start = False
        if self._waiting:
            self._release(text[: len(text) - len(rest)], events)
        return rest

    def _begin(self, text: str) -> str:
        body = call_within_code if self._fence else wrapped_call
        self._call = ToolCallReader(body, text[0], self._schemas, only_known=True)
        self._raw = [text[0]]
        return text[1:]

    def _keep(self, text: str) -> None:
        """Text that belongs to calls, unless these turn out to be text themselves."""
        if self._waiting:
            self._waiting_text.append(text)

    # ------------------------------------------------------------------------ within a call

    def _inside(self, text: str, events: list[ToolEvent]) -> str:
        """Takes the text of a call; returns what follows it."""
        call = self._call
        assert call is not None
        for position, char in enumerate(text):
            try:
                found = call.feed(char)
            except NotAToolCall:
                unread = call.unread + text[position + 1 :]
                if call.has_started and not call.has_open_call:  # the call is whole but for what closes it
                    (self._waiting if self._has_text else events).extend(call.flush())
                    del self._raw[max(0, len(self._raw) - len(call.unread) + 1) :]
                    self._end_call()
                    return unread
                stays = call.has_started and not self._has_text  # what was emitted
                return self._end_as_text(call, unread if stays else text[position:], events)
            if self._has_text:
                self._waiting += found
            elif found:
                self._space = []
                events += found
            if self._has_text or not call.has_started:
                self._raw.append(char)
            if call.is_done:
                self._end_call()
                return text[position + 1 :]
        return ""

    def _end_call(self) -> None:
        if self._has_text:
            self._waiting_text += self._raw
        self._call, self._follows_call = None, True

    def _end_as_text(self, call: ToolCallReader, rest: str, events: list[ToolEvent]) -> str:
        self._call = None
        if call.has_started and not self._has_text:
            events += call.flush()
            self.has_cut_call = self.has_cut_call or call.has_open_call
            self._follows_call = False
            self._has_text = True
            self._is_line_start = rest[:1] == "\n"
            self._line, self._fence = "" if self._is_line_start else rest[:1], ""
            events.append(ContentDelta(rest[:1]))
            return rest[1:]
        raw = "".join(self._raw)
        self._follows_call = False
        if "{" in raw:
            self._release(raw, events)
            return rest
        # What looked like a wrapper is none; a call may begin within it.
        self._release(raw[:1], events)
        return raw[1:] + rest

    def _release(self, text: str, events: list[ToolEvent]) -> None:
        """Emits text, and before it as text the calls that it follows."""
        text = "".join(self._waiting_text) + text
        self._waiting, self._waiting_text = [], []
        self._emit(text, events)

    def _emit(self, text: str, events: list[ToolEvent]) -> None:
        if not text:
            return
        line = text.rpartition("\n")
        self._is_line_start = bool(line[1] or self._is_line_start) and not line[2].strip(" \t")
        if not self._has_text and text.isspace():
            self._space.append(text)
            return
        text, self._space = "".join((*self._space, text)), []
        self._has_text = True
        self._has_brace = self._has_brace or "{" in text
        self._find_fences(text)
        events.append(ContentDelta(text))

    def _find_fences(self, text: str) -> None:
        """Takes note of the fences in more of the text."""
        first, *others = text.split("\n")
        self._line += first[: _MAX_LINE - len(self._line)]
        for line in others:
            found = _FENCE_LINE.match(self._line)
            if found is not None and not self._fence:
                self._fence = "" if found["mark"] in found["rest"] else found["mark"]
            elif found is not None and found["mark"] == self._fence and not found["rest"].strip(" \t\r`~"):
                self._fence = ""
            self._line = line[:_MAX_LINE]


def _may_observe(text: str) -> bool:
    """Whether a text behind a call may become the word behind which ReAct has the result."""
    return len(text) <= _MAX_SPACE and OBSERVATION.startswith(text.rstrip())
