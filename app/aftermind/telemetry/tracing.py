"""Spans from `remember` to the model call, as one trace. Off by default: then a call costs one comparison.

A span's context is added to a turn as a W3C `traceparent` (ids of the trace and the span, no content): in the pending
entry, and in the payload of follow-up jobs.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aftermind import errors, extras

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from aftermind.settings import Settings

NAME = "aftermind"
KEY = "traceparent"  # in the payload of a job, as W3C names it
Attribute = str | int | float | bool

_tracer: "Tracer | None" = None


def is_on() -> bool:
    """Whether this process makes spans."""
    return _tracer is not None


def switch_on() -> None:
    """Create spans from now on, with the tracer provider of the process; without a provider they are discarded."""
    global _tracer
    extras.require("opentelemetry", "AFTERMIND_TRACING")
    from opentelemetry import trace

    _tracer = trace.get_tracer(NAME)


def export(settings: "Settings", *, service: str) -> None:
    """For a process of ours, where `settings.tracing` is on: send spans by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT.

    A tracer provider that is set already stays. Raises `InvalidSettings` where the exporter is not installed.
    """
    if not settings.tracing:
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        why = "spans need the exporter: pip install 'aftermind[otel]'."
        raise errors.InvalidSettings("AFTERMIND_TRACING", True, why) from exc
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(resource=Resource.create({"service.name": service}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    switch_on()


def flush() -> None:
    """Send what is still here, before the process ends."""
    if _tracer is None:
        return
    from opentelemetry import trace

    send = getattr(trace.get_tracer_provider(), "force_flush", None)
    if send is not None:
        send(2_000)  # ms


@contextmanager
def span(name: str, **attributes: Attribute) -> "Iterator[Span | None]":
    """A span inside the one that is current; None where spans are off. Attributes are ids, counts and names."""
    if _tracer is None:
        yield None
        return
    with _span_below(None, name, attributes) as made:
        yield made


def carried() -> str | None:
    """The context of the current span, to be added to a turn; None if there is none."""
    if _tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(KEY)


@contextmanager
def continued(name: str, parents: Sequence[str | None], **attributes: Attribute) -> Iterator[None]:
    """Spans for a batch of jobs, each in the trace of its job, over the same period.

    The first one is current inside the block, so that the single model call of a batch is in a trace; the others link
    to it.
    """
    contexts = _contexts(parents)
    if _tracer is None or not contexts:
        yield
        return
    from opentelemetry import trace

    started = time.time_ns()
    with _span_below(contexts[0], name, attributes) as first:
        try:
            yield
        finally:
            link = trace.Link(first.get_span_context())
            for context in contexts[1:]:
                other = _tracer.start_span(
                    name, context=context, links=[link], start_time=started, attributes=attributes
                )
                other.end()


@contextmanager
def _span_below(context: "Context | None", name: str, attributes: Mapping[str, Attribute]) -> "Iterator[Span]":
    """A current span below a remote context, or below the current span.

    Of an exception only the class is recorded: its text may quote user content.
    """
    assert _tracer is not None
    made = _tracer.start_as_current_span(name, context=context, attributes=attributes, record_exception=False)
    with made as current:
        try:
            yield current
        except BaseException as exc:
            current.set_attribute("error.type", type(exc).__name__)
            raise


def _contexts(parents: Sequence[str | None]) -> "list[Context]":
    """The well-formed contexts, without duplicates. Their writer may be another release."""
    if _tracer is None:
        return []
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator, nowhere = TraceContextTextMapPropagator(), context.Context()
    read = (propagator.extract({KEY: parent}, nowhere) for parent in dict.fromkeys(parents) if parent is not None)
    return [each for each in read if trace.get_current_span(each).get_span_context().is_valid]
