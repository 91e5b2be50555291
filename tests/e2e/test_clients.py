"""The clients people already have, unmodified, against the server as it is started."""

from __future__ import annotations

from collections.abc import Iterator

import litellm
import openai
import pytest
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import SecretStr

from support.server_process import ServerProcess, start_server
from support.sessions import CHAT_TEMPLATE
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = [
    pytest.mark.e2e,
    # The clients' own, about each other.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You are a clerk at a desk of lost things. " * 4},
    {"role": "user", "content": "Where is my hat?"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = save_model(
        make_llama(max_position_embeddings=1024), tmp_path_factory.mktemp("tiny-llama")
    )
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model)
    directory = tmp_path_factory.mktemp("server")
    with start_server(model, directory, "--cache-blocks", "512") as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="module")
def base_url(server: ServerProcess) -> str:
    return f"{server.ready['public_url']}/v1"


@pytest.fixture(scope="module")
def client(base_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def name(client: openai.OpenAI) -> str:
    [model] = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    return model.id


# -- openai --------------------------------------------------------------------------------


def test_openai_chat_reports_what_was_cached(client: openai.OpenAI, name: str) -> None:
    replies = [
        client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=6, seed=1)
        for _ in range(2)
    ]
    first, second = replies
    assert first.choices[0].message.content == second.choices[0].message.content
    for reply in replies:
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        assert reply.usage.total_tokens == (
            reply.usage.prompt_tokens + reply.usage.completion_tokens
        )
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens == (
        second.usage.prompt_tokens - 1
    )


def test_openai_streams_the_same_text(client: openai.OpenAI, name: str) -> None:
    whole = client.chat.completions.create(
        model=name, messages=MESSAGES, max_tokens=9, temperature=0
    )
    chunks = list(
        client.chat.completions.create(
            model=name,
            messages=MESSAGES,
            max_tokens=9,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(
        chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices
    )
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9


def test_openai_two_choices_with_logprobs(client: openai.OpenAI, name: str) -> None:
    reply = client.chat.completions.create(
        model=name,
        messages=MESSAGES,
        max_tokens=5,
        n=2,
        temperature=1.5,
        seed=4,
        logprobs=True,
        top_logprobs=3,
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 5
        for entry in choice.logprobs.content:
            assert entry.logprob <= 0
            assert len(entry.top_logprobs) == 3
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 10


def test_openai_completions_with_echo(client: openai.OpenAI, name: str) -> None:
    prompt = "the hat is on the shelf"
    reply = client.completions.create(
        model=name, prompt=prompt, max_tokens=3, echo=True, logprobs=2
    )
    [choice] = reply.choices
    assert choice.text.startswith(prompt)
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert not choice.logprobs.token_logprobs[0]
    assert choice.logprobs.tokens is not None
    # What follows are single bytes here, which are no text by themselves.
    assert "".join(choice.logprobs.tokens).startswith(prompt)
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)


def test_openai_errors_are_the_clients_own(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=name, messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(
            model=name, messages=MESSAGES, response_format={"type": "json_object"}
        )
    with pytest.raises(openai.BadRequestError, match="max_model_len"):
        client.completions.create(model=name, prompt="x " * 3000)


def test_a_stream_that_is_closed_early_is_aborted(
    server: ServerProcess, client: openai.OpenAI, name: str
) -> None:
    with client.chat.completions.create(
        model=name, messages=MESSAGES, max_tokens=500, stream=True
    ) as stream:
        next(iter(stream))
    with server.admin() as admin:
        for _ in range(200):
            blocks = admin.get("/cache/stats").json()["blocks"]
            if (blocks["private"], blocks["shared"]) == (0, 0):
                return
    pytest.fail("blocks are still held")


# -- others --------------------------------------------------------------------------------


def test_litellm(base_url: str, name: str) -> None:
    options = {
        "model": f"openai/{name}",
        "api_base": base_url,
        "api_key": "none",
        "messages": MESSAGES,
        "max_tokens": 6,
        "temperature": 0,
    }
    whole = litellm.completion(**options)
    text = whole.choices[0].message.content
    assert whole.usage.completion_tokens == 6
    assert whole.usage.prompt_tokens_details.cached_tokens > 0
    chunks = litellm.completion(**options, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    two = litellm.completion(**{**options, "temperature": 1.0}, n=2)
    assert len(two.choices) == 2
    with pytest.raises(litellm.exceptions.BadRequestError):
        litellm.completion(**{**options, "max_tokens": -5})


def test_langchain(base_url: str, name: str) -> None:
    chat = ChatOpenAI(
        model=name,
        base_url=base_url,
        api_key=SecretStr("none"),
        max_completion_tokens=6,
        logprobs=True,
        temperature=0,
    )
    question = [("system", "Be brief."), ("human", "Where is my hat?")]
    reply = chat.invoke(question)
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] == 6
    assert len(reply.response_metadata["logprobs"]["content"]) == 6
    streamed = "".join(str(piece.content) for piece in chat.stream(question))
    assert streamed == reply.content
    again = chat.invoke(question)
    assert again.usage_metadata is not None
    assert again.usage_metadata["input_token_details"]["cache_read"] == (
        again.usage_metadata["input_tokens"] - 1
    )


def test_nothing_is_held_when_all_have_gone(server: ServerProcess) -> None:
    with server.admin() as admin:
        blocks = admin.get("/cache/stats").json()["blocks"]
    assert (blocks["private"], blocks["shared"]) == (0, 0)
