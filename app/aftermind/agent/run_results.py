"""The result of a run, and the items of its stream."""

from dataclasses import dataclass, field

from aftermind.events.types import MemoryEvent
from aftermind.llm.protocols import Usage
from aftermind.receipt import Receipt
from aftermind.types import Message, RecallBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of the answer, as the model gave it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """The model asked for a tool; `arguments` is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturned:
    """What the tool gave back to the model; `failed` where it raised or could not be called."""

    id: str
    name: str
    content: str
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """A finished run.

    `memory` is the block that was recalled, with the reason in `degraded` if a part of it may be missing; None where
    memory was off or failed. `receipt` is of what was handed over, None likewise. With an `idempotency_key` prompt and
    answer are two turns, and it is of both; of a repeated run that answered differently it is of the prompt alone,
    since the first answer is stored. `messages` is what was asked, what tools returned, what was answered.
    `finish_reason` is why the answer ended: `stop`, `length` if the model's limit of tokens cut it off, or `max_steps`
    if the agent's limit ended the rounds of tool calls.
    """

    text: str
    run_id: str
    messages: tuple[Message, ...]
    memory: RecallBlock | None = None
    receipt: Receipt | None = None
    usage: tuple[Usage, ...] = field(default=())
    finish_reason: str = "stop"

    def __str__(self) -> str:
        return self.text


AgentEvent = MemoryEvent | TextDelta | ToolCalled | ToolReturned | AgentResult
