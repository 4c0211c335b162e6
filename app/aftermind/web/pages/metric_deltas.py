"""From counters and histograms of two moments to rates and quantiles. Pure."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry

from aftermind.telemetry.metric_series import quantile

Labels = tuple[tuple[str, str], ...]
Counts = Mapping[tuple[str, Labels], float]


def read(registry: CollectorRegistry) -> dict[tuple[str, Labels], float]:
    """Every sample of ours in a registry, by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.startswith("aftermind_")
    }


def grown(before: Counts, after: Counts, name: str, by: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """Increase of a counter between two moments, by some of its labels; unchanged series are left out.

    A counter that decreased was restarted, so its increase is its value.
    """
    found: dict[tuple[str, ...], float] = {}
    for (named, labels), value in after.items():
        if named != name:
            continue
        was = before.get((named, labels), 0.0)
        more = value - was if value >= was else value
        if more > 0:
            known = dict(labels)
            key = tuple(known.get(label, "") for label in by)
            found[key] = found.get(key, 0.0) + more
    return found


def quantiles(
    before: Counts, after: Counts, name: str, by: str | None, shares: Iterable[float]
) -> dict[str, tuple[float, ...]]:
    """Quantiles of a histogram's growth, by one label (under "" without one); what did not grow is left out."""
    labels = (by, "le") if by else ("le",)
    buckets: dict[str, list[tuple[float, float]]] = {}
    for key, more in grown(before, after, f"{name}_bucket", labels).items():
        buckets.setdefault(key[0] if by else "", []).append((float(key[-1]), more))
    return {
        label: tuple(quantile(sorted(rows), share) for share in shares)
        for label, rows in buckets.items()
        if max(count for _, count in rows) > 0
    }
