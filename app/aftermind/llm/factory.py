"""From settings to models: which embedder, extractor, summariser, profiler and chat model serve."""

from collections.abc import Sequence

from aftermind import errors
from aftermind.llm.protocols import ChatModel, Embedder, Extractor, Profiler, Summariser, embedder_identity
from aftermind.llm.provider_connections import CHAT_KINDS, CLIENTS, Providers
from aftermind.llm.rate_limit_and_circuit_breaker import ProviderState, provider_name
from aftermind.settings import MAX_DIMENSION, Settings
from aftermind.types import EmbedderIdentity, JobKind
from aftermind.types.job import MODEL_KINDS


def embedder(settings: Settings, *, providers: Providers | None = None) -> Embedder | None:
    """The embedder of `settings.embedder`; None for `off`. Loads no model yet. Raises `InvalidSettings`."""
    kind, _, name = _chosen(
        settings.embedder, settings, auto="openai:text-embedding-3-small", offline="hash"
    ).partition(":")
    match kind:
        case "off":
            return None
        case "hash" if not name or name.isdecimal():
            from aftermind.llm.hash_embedder import DIMENSION, HashEmbedder

            _, dimension = _with_dimension(f"hash:{name}", settings.embedding_dimension)
            return HashEmbedder(dimension or DIMENSION, language=settings.language)
        case "local":
            from aftermind.llm.sentence_transformers import LocalEmbedder

            return LocalEmbedder(name)
        case "openai" | "voyage" | "cohere" if name or kind == "openai":
            from aftermind.llm.openai.embeddings import ProviderEmbedder

            client = (providers or Providers()).client(kind, settings)
            model, dimension = _with_dimension(name or "text-embedding-3-small", settings.embedding_dimension)
            return ProviderEmbedder(client, model, dimension=dimension)
    known = "auto, hash[:DIMENSION], openai:MODEL[:DIMENSION], voyage:MODEL, cohere:MODEL, local:PATH or off"
    raise _unknown("AFTERMIND_EMBEDDER", settings.embedder, known)


def make_embedder_for(
    identity: EmbedderIdentity, settings: Settings, *, providers: Providers | None = None
) -> Embedder | None:
    """The embedder that has this identity; None if it cannot be made from its name. Loads a local model: in a thread.

    Raises `InvalidSettings` where the extra or the key that it needs is missing.
    """
    kind = identity.name.partition(":")[0]
    named: dict[str, object] = {"embedder": identity.name, "embedding_dimension": None}
    if kind == "hash":
        named = {"embedder": "hash", "embedding_dimension": identity.dimension}
        if identity.revision:
            named["language"] = identity.revision
    elif kind in ("openai", "voyage", "cohere"):
        if getattr(settings, f"{kind}_api_key") is None:
            variable = f"{kind.upper()}_API_KEY"
            raise errors.InvalidSettings(variable, None, f"{identity} needs {variable}. Set it for this process.")
    elif kind != "local":
        return None
    found = embedder(settings.model_copy(update=named), providers=providers)
    return found if found is not None and embedder_identity(found) == identity else None


def _with_dimension(name: str, given: int | None) -> tuple[str, int | None]:
    """Model and dimension of a name like `my-model:64`, as vectors are stored under it. Raises `InvalidSettings`."""
    model, _, dimension = name.rpartition(":")
    if not model or not dimension.isdecimal():
        return name, given
    if not 0 < int(dimension) <= MAX_DIMENSION:
        raise errors.InvalidSettings("embedder", name, f"a vector has 1 to {MAX_DIMENSION:,} dimensions.")
    if given not in (None, int(dimension)):
        why = f"the name AFTERMIND_EMBEDDER={name!r} has {dimension} dimensions. Leave one of the two out."
        raise errors.InvalidSettings("embedding_dimension", given, why)
    return model, int(dimension)


def extractor(settings: Settings, *, instructions: str = "", providers: Providers | None = None) -> Extractor | None:
    """The extractor of `settings.extractor`; None for `off`. A model also gets `instructions`. Raises
    `InvalidSettings`.
    """
    kind, _, name = _mining(settings).partition(":")
    match kind:
        case "off":
            return None
        case "rules":
            from aftermind.llm.offline.rule_extractor import RuleExtractor

            return RuleExtractor()
        case "openai" | "anthropic" | "litellm":
            from aftermind.llm.openai.extraction import OpenAIExtractor

            client = (providers or Providers()).client(kind, settings)
            return OpenAIExtractor(client, _model(kind, name, settings), instructions=instructions)
    raise _unknown(
        "AFTERMIND_EXTRACTOR", settings.extractor, "auto, rules, openai:MODEL, anthropic:MODEL, litellm:MODEL or off"
    )


def summariser(settings: Settings, *, providers: Providers | None = None) -> Summariser | None:
    """The summariser for the extractor: a model if that is a model, else the most central sentences."""
    kind, _, name = _mining(settings).partition(":")
    if kind in CHAT_KINDS:
        from aftermind.llm.openai.extraction import OpenAISummariser

        return OpenAISummariser((providers or Providers()).client(kind, settings), _model(kind, name, settings))
    if kind == "off":
        return None
    from aftermind.llm.offline.summaries import ExtractiveSummariser

    return ExtractiveSummariser()


def profiler(settings: Settings, *, providers: Providers | None = None) -> Profiler | None:
    """The profiler for the extractor: a model if that is a model, else rules."""
    kind, _, name = _mining(settings).partition(":")
    if kind in CHAT_KINDS:
        from aftermind.llm.openai.extraction import OpenAIProfiler

        return OpenAIProfiler((providers or Providers()).client(kind, settings), _model(kind, name, settings))
    if kind == "off":
        return None
    from aftermind.llm.offline.summaries import RuleProfiler

    return RuleProfiler()


def chat_model(settings: Settings, name: str | None = None, *, providers: Providers | None = None) -> ChatModel:
    """A model to talk to, by name: `MODEL` of OpenAI, `openai:MODEL`, `anthropic:MODEL` or `litellm:MODEL`.

    Raises `InvalidSettings` where no key is set: there is no offline one to talk to.
    """
    named = name or settings.chat_model
    kind, _, model = named.partition(":")
    if kind not in CHAT_KINDS:
        kind, model = "openai", named
    if kind != "litellm" and getattr(settings, f"{kind}_api_key") is None:
        variable = f"{kind.upper()}_API_KEY"
        why = f"no {variable} is set. Set one, or give Agent(model=...) a model object (see aftermind.testing)."
        raise errors.InvalidSettings("model", named, why)
    from aftermind.llm.openai.chat import OpenAIChat

    return OpenAIChat((providers or Providers()).client(kind, settings), model)


def paid_models(settings: Settings) -> list[str]:
    """The models of embedder, extractor and replays that a provider serves, by the names that calls are priced by."""
    made = embedder(settings)
    names = [*([made.name] if made else []), *sorted(replayable(settings))]
    return [name for name in names if name.partition(":")[0] in CLIENTS]


def missing_keys(settings: Settings) -> dict[str, str]:
    """The paid models whose provider's key is not set, with the key's variable."""
    kinds = {name: name.partition(":")[0] for name in paid_models(settings)}
    keyed = {name: f"{kind}_api_key" for name, kind in kinds.items() if f"{kind}_api_key" in Settings.model_fields}
    return {name: field.upper() for name, field in keyed.items() if getattr(settings, field) is None}


def find_provider_pause(
    kind: str, settings: Settings, states: Sequence[ProviderState], *, is_worker: bool = False
) -> ProviderState | None:
    """The pause, for all calls, of the provider that jobs of this kind call; None without one.

    A setting `auto` without a key may be another one for workers, unless it is theirs: any provider counts then.
    """
    if kind not in MODEL_KINDS:
        return None
    given = settings.embedder if kind == JobKind.EMBED else settings.extractor
    paused = [each for each in states if each.why is not None and not each.is_large_only]
    if is_worker or given != "auto" or settings.openai_api_key is not None:
        chosen = {_chosen(given, settings, auto="openai", offline="").partition(":")[0]}
        chosen |= {"openai"} if settings.replay_models and kind == JobKind.EXTRACT else set()
        names = {provider_name(each, getattr(settings, f"{each}_base_url")) for each in chosen & CLIENTS.keys()}
        paused = [each for each in paused if each.provider in names]
    return paused[0] if paused else None


def replayable(settings: Settings) -> frozenset[str]:
    """Extractors that a replay may name: the one that is set, rules, and what `settings.replay_models` allows."""
    kind, _, name = _mining(settings).partition(":")
    usual = f"{kind}:{_model(kind, name, settings)}" if kind in CHAT_KINDS else kind
    return frozenset({usual, "rules", *(f"openai:{model}" for model in settings.replay_models)}) - {"off"}


def _model(kind: str, name: str, settings: Settings) -> str:
    """The model that a setting names. Raises `InvalidSettings` if it names none, and is not OpenAI's."""
    if not name and kind != "openai":
        raise errors.InvalidSettings("extractor", kind, f"name the model: {kind}:MODEL.")
    return name or settings.chat_model


def _mining(settings: Settings) -> str:
    return _chosen(settings.extractor, settings, auto=f"openai:{settings.chat_model}", offline="rules")


def _chosen(given: str, settings: Settings, *, auto: str, offline: str) -> str:
    if given != "auto":
        return given
    return auto if settings.openai_api_key is not None else offline


def _unknown(field: str, value: str, known: str) -> errors.InvalidSettings:
    return errors.InvalidSettings(field, value, f"it is one of {known}.")
