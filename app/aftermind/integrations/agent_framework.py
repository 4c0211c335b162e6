"""Microsoft Agent Framework: a context provider that recalls before a run and remembers it afterwards."""

from collections.abc import Callable
from typing import Any, Unpack

from aftermind.integrations.conversations import choose, recalled_text, remember_run
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.sync import Memory as SyncMemory

with extra("agent-framework"):
    from agent_framework import AgentSession, ContextProvider, Message, SessionContext

Id = str | Callable[[AgentSession], str | None] | None


class AftermindProvider(ContextProvider):
    """Memory of an agent: adds what fits the input as a message of the user's role, and remembers input and response.

    `user_id` is an id or a function of the session: `lambda session: session.state["user_id"]` lets one agent serve
    many users. The session's id is the session of memory. `options` are those of `memory.recall`.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        user_id: Id = None,
        namespace: str | None = None,
        source_id: str = "aftermind",
        **options: Unpack[RecallOptions],
    ) -> None:
        super().__init__(source_id)
        self.memory, self.user_id, self.namespace, self.options = memory, user_id, namespace, options

    async def before_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Add what is recalled for the user's messages of this run."""
        question = "\n".join(each.text for each in context.input_messages if each.role == "user")
        text = await recalled_text(self.memory, question, **self._whose(session), **self.options)
        if text:
            context.extend_messages(self, [Message("user", [text])])

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Remember the texts of the user and of the agent."""
        messages = [*context.input_messages, *(context.response.messages if context.response else ())]
        said = [(str(each.role), each.text) for each in messages if each.role in ("user", "assistant")]
        await remember_run(self.memory, said, **self._whose(session))

    def _whose(self, session: AgentSession) -> dict[str, Any]:
        user_id = choose(self.user_id, session)
        return {"user_id": user_id, "session_id": session.session_id, "namespace": self.namespace}
