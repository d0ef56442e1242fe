"""The tools that the chat has without any server: a calculator, and the time."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from server.cli.tools.calculator import CalculationError, calculate
from server.cli.tools.tool import Result, Tool

_TEXT = {"type": "string"}
_TOOLS = (
    Tool(
        "calculator",
        "Calculates the value of an arithmetic expression, for example (3 + 4) * 2 ^ 5 or sqrt(2).",
        {
            "type": "object",
            "properties": {"expression": _TEXT},
            "required": ["expression"],
            "additionalProperties": False,
        },
    ),
    Tool(
        "time",
        "Tells the date and the time, in the user's time zone or in another one such as Europe/Paris.",
        {"type": "object", "properties": {"time_zone": _TEXT}, "additionalProperties": False},
    ),
)


class BuiltinTools:
    """Tools that run in this process."""

    name = "eagre"

    async def list_tools(self) -> list[Tool]:
        return list(_TOOLS)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Result:
        match name, arguments:
            case "calculator", {"expression": str(expression)}:
                try:
                    return Result(calculate(expression))
                except CalculationError as error:
                    return Result(str(error), is_error=True)
            case "calculator", _:
                return Result("The expression must be a text.", is_error=True)
            case "time", _:
                return _time(arguments.get("time_zone"))
        return Result(f"There is no tool {name}.", is_error=True)

    async def close(self) -> None:
        pass


def _time(zone: Any) -> Result:
    try:
        now = datetime.now(ZoneInfo(zone)) if isinstance(zone, str) and zone else datetime.now().astimezone()
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        return Result(f"There is no time zone {zone}.", is_error=True)
    return Result(now.strftime("%A, %d %B %Y at %H:%M:%S %Z"))
