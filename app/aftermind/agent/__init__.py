"""A small model loop with memory around it."""

from aftermind.agent.agent import Agent
from aftermind.agent.block_edit_tools import block_tools
from aftermind.agent.function_tools import Tool
from aftermind.agent.run_results import AgentEvent, AgentResult, TextDelta, ToolCalled, ToolReturned

__all__ = ["Agent", "AgentEvent", "AgentResult", "TextDelta", "Tool", "ToolCalled", "ToolReturned", "block_tools"]
