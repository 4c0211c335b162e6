"""Extraction, summaries and profiles by structured answers."""

import hashlib
from collections.abc import Mapping, Sequence

import orjson

from aftermind.llm import answer_schemas, prompts
from aftermind.llm.grounding import ground
from aftermind.llm.openai.client import Client
from aftermind.llm.openai.structured_output import ask
from aftermind.llm.protocols import Condensed, Extraction, ExtractionRequest, Traits, TurnText
from aftermind.types import Json


class OpenAIExtractor:
    """Claims by a chat model with a strict schema. `instructions` follow the rules of the prompt, and are a version."""

    def __init__(self, client: Client, model: str, *, instructions: str = "") -> None:
        self._client, self._model = client, model
        self._system = f"{prompts.EXTRACTION}\n{instructions}" if instructions else prompts.EXTRACTION
        digest = f"+{hashlib.sha256(instructions.encode()).hexdigest()[:8]}" if instructions else ""
        self.version = f"{prompts.EXTRACTION_VERSION}{digest}"
        self.name = f"{client.kind}:{model}"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Claims of the trusted turns, each with a quote that was found in its source."""
        prompt = prompts.extraction(request)
        answer, spent = await ask(self._client, self._model, self._system, prompt, answer_schemas.AnsweredExtraction)
        subjects = {fact.subject for fact in request.known}
        claims = await ground(answer_schemas.build_assertions(answer, request.turns), request.turns, subjects=subjects)
        reason = None if claims else _reason(answer)
        return Extraction(claims=claims, reason_empty=reason, usage=spent)


class OpenAISummariser:
    """A rolling summary by a chat model."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self.name = f"{client.kind}:{model}:{prompts.SUMMARY_VERSION}"

    async def summarise(self, previous: str | None, turns: Sequence[TurnText]) -> Condensed:
        """The summary that takes the place of `previous`."""
        prompt = prompts.summary(previous, turns)
        answer, spent = await ask(self._client, self._model, prompts.SUMMARY, prompt, answer_schemas.AnsweredSummary)
        return Condensed(text=answer.summary, usage=spent)


class OpenAIProfiler:
    """Traits by a chat model: of a schema given, or proposed by it."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self.name = f"{client.kind}:{model}:{prompts.PROFILE_VERSION}"

    async def profile(
        self, current: Mapping[str, Json], turns: Sequence[TurnText], schema: Mapping[str, Json] | None
    ) -> Traits:
        """The traits that the turns change; those without evidence, or not of the schema, are left out."""
        prompt = prompts.profile(current, turns, schema)
        answer, spent = await ask(self._client, self._model, prompts.PROFILE, prompt, answer_schemas.AnsweredProfile)
        allowed = None if schema is None else set(schema.get("properties", {}))
        values, evidence = {}, {}
        for trait in answer.traits:
            found = answer_schemas.evidence_ids(trait.evidence, turns)
            if found and (allowed is None or trait.name in allowed):
                values[trait.name], evidence[trait.name] = _value(trait.value), found
        return Traits(values=values, evidence=evidence, usage=spent)


def _reason(answer: answer_schemas.AnsweredExtraction) -> str:
    if answer.claims:
        return "no claim stood in the words of a trusted turn"
    return answer.reason_empty or "the model gave no reason"


def _value(text: str) -> Json:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text  # a bare word is a text
