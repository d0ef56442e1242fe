"""The syntaxes of calls that are known, found by their names or by a model's chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.output_parsers.families.deepseek import DEEPSEEK
from server.output_parsers.families.functionary import FUNCTIONARY_V32
from server.output_parsers.families.gemma import GEMMA
from server.output_parsers.families.gemma4 import FUNCTIONGEMMA, GEMMA4
from server.output_parsers.families.glm import GLM
from server.output_parsers.families.harmony import HARMONY
from server.output_parsers.families.json_formats import (
    APERTUS,
    COHERE,
    FUNCTIONARY,
    GRANITE,
    HERMES,
    HUNYUAN,
    LLAMA,
    MISTRAL,
    NEMOTRON,
    PHI,
    QWEN_CODER,
)
from server.output_parsers.families.kimi import KIMI
from server.output_parsers.families.lfm2 import LFM2
from server.output_parsers.families.minimax_m3 import MINIMAX_M3
from server.output_parsers.families.pythonic_calls import OLMO3, PYTHONIC
from server.output_parsers.families.step3 import STEP3
from server.output_parsers.families.tagged_calls import DEEPSEEK_V32, MINIMAX, SEED_OSS
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax

if TYPE_CHECKING:  # the settings know the names here, and `eagre serve --help` shall not wait for templates
    from server.text.chat_template import ChatTemplate

NATIVE = "native"  # the name by which the flag takes no syntax but that of the model's template

# The order matters for templates: several families have tags of others, too.
TOOL_CALL_SYNTAXES: tuple[ToolCallSyntax, ...] = (
    HARMONY,
    DEEPSEEK_V32,
    DEEPSEEK,
    STEP3,
    KIMI,
    MINIMAX_M3,
    MINIMAX,
    SEED_OSS,
    GLM,
    GEMMA4,
    FUNCTIONGEMMA,
    QWEN_CODER,
    FUNCTIONARY,
    FUNCTIONARY_V32,
    PHI,
    GRANITE,
    NEMOTRON,
    COHERE,
    APERTUS,
    LFM2,
    HUNYUAN,
    OLMO3,
    HERMES,
    MISTRAL,
    LLAMA,
    PYTHONIC,
    GEMMA,
)


def syntax_of_template(source: str) -> ToolCallSyntax | None:
    """The syntax that a chat template shows; None where it shows none that is known."""
    return next(
        (syntax for syntax in TOOL_CALL_SYNTAXES if any(mark in source for mark in syntax.template_marks)), None
    )


def choose_tool_call_syntax(name: str | None, chat_template: ChatTemplate | None) -> ToolCallSyntax | None:
    """The syntax with this name, or else that of the model's template; None where neither is known."""
    if name is not None and name != NATIVE:
        return next(syntax for syntax in TOOL_CALL_SYNTAXES if syntax.name == name)
    return None if chat_template is None else syntax_of_template(chat_template.source)
