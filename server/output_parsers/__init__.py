"""The parts of an answer's text: how models write reasoning and tool calls, and how they are read as they stream."""
