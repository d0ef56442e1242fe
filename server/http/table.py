"""The list of all routes that generate text."""

from server.api.anthropic.messages import MESSAGES
from server.api.llama_cpp.chat import CHAT as LLAMA_CHAT
from server.api.llama_cpp.completion import ALSO_COMPLETION, COMPLETION, INFILL
from server.api.ollama.generating import CHAT, GENERATE
from server.api.openai.chat import CHAT_COMPLETIONS
from server.api.openai.completions import COMPLETIONS
from server.api.openai.websocket_messages import STREAM
from server.api.route import Route

ROUTES: tuple[Route, ...] = (
    COMPLETIONS,
    CHAT_COMPLETIONS,
    MESSAGES,
    CHAT,
    GENERATE,
    COMPLETION,
    ALSO_COMPLETION,
    INFILL,
    LLAMA_CHAT,
    STREAM,
)
