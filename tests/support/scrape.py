"""What a scrape of `/metrics` says."""

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families


def scrape(url: str, token: str | None = None) -> Mapping[str, float]:
    """Every sample by its name and labels, spelt `name{label="value"}`, in the order of the labels' names."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{url}/metrics", headers=headers, timeout=10, trust_env=False, verify=False)
    answer.raise_for_status()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, f"{name} is there twice"
            found[name] = sample.value
    return found
