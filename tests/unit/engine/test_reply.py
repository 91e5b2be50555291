"""A reply's log-probabilities are those of the tokens that its text shows."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefold.blocks.table import TOKEN_DTYPE
from prefold.engine.config import RequestOptions
from prefold.engine.detokenizer import Detokenizer
from prefold.engine.logprobs import TokenLogprob
from prefold.engine.outbox import NewToken
from prefold.engine.reply import Reply
from prefold.engine.request import FinishReason, RequestId, RequestOutput, SamplingParams
from prefold.engine.sampler import Sampler
from prefold.engine.sequence import Sequence
from support.fingerprints import make_fingerprint
from support.tiny_models import VOCAB_SIZE, make_tokenizer

TOKENIZER = make_tokenizer()
END = VOCAB_SIZE - 2
#: Texts of several tokens, of several characters, and characters of several tokens.
PIECES = ["a", "ab", "abc", "the", "e", "€", "é", "n"]


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text))


def make_reply(stop: tuple[str, ...], *, max_tokens: int = 60, **others: object) -> Reply:
    prompt = np.array(ids("x"), dtype=TOKEN_DTYPE)
    params = SamplingParams(stop=stop, logprobs=0, **others)  # type: ignore[arg-type]
    sequence = Sequence(
        RequestId("request-1"),
        1,
        prompt,
        max_tokens=max_tokens,
        fingerprint=make_fingerprint(block_size=4),
        options=RequestOptions(),
    )
    sequence.num_computed = len(prompt)
    state = Sampler(VOCAB_SIZE).start(params, prompt, fallback_seed=0)
    text = Detokenizer(TOKENIZER).start()
    return Reply(sequence, state, text, stop_ids=frozenset({END}), now=0.0)


def push(reply: Reply, token_ids: list[int]) -> list[NewToken]:
    """Add tokens until the reply ends; return what it lets go."""
    tokens = []
    for token_id in token_ids:
        tokens += reply.add(token_id, torch.zeros(VOCAB_SIZE), 1.0)
        if reply.finish_reason() is not None:
            break
    return tokens


def finish(reply: Reply, tokens: list[NewToken]) -> RequestOutput:
    """End a reply as the engine does, from inside or from outside."""
    reply.flush()
    tokens += reply.end_tokens()
    return reply.output(reply.finish_reason() or FinishReason.ABORTED, 2.0)


def listed(tokens: list[NewToken]) -> list[TokenLogprob]:
    return [token.logprob for token in tokens if token.logprob is not None]


def test_tokens_of_a_stop_text_are_not_listed() -> None:
    reply = make_reply(("end",))
    tokens = push(reply, ids("the ") + ids("e") + ids("n") + ids("d"))
    assert [token.text for token in tokens] == ["th", "e ", "", "", ""]
    output = finish(reply, tokens)
    assert output.text == "the "
    assert output.finish_reason is FinishReason.STOP
    assert output.usage.completion_tokens == len(output.token_ids) == 5
    assert [value.token_id for value in output.logprobs or ()] == ids("the ")
    assert listed(tokens) == list(output.logprobs or ())


def test_a_token_that_may_be_cut_off_waits_for_the_decision() -> None:
    reply = make_reply(("end",))
    assert push(reply, ids("e")) == []
    assert push(reply, ids("n")) == []
    both = ids("en")
    freed = push(reply, ids("o"))
    assert [token.token_id for token in freed] == [*both, *ids("o")]
    assert [token.text for token in freed] == ["", "", "eno"]
    assert len(listed(freed)) == 3


def test_a_token_that_the_cut_goes_through_is_listed() -> None:
    reply = make_reply(("bc",))
    tokens = push(reply, ids("abc"))
    output = finish(reply, tokens)
    assert (output.text, len(output.token_ids)) == ("a", 1)
    assert listed(tokens) == list(output.logprobs or ())
    assert len(listed(tokens)) == 1


def test_parts_of_a_character_go_with_it() -> None:
    reply = make_reply(("€",))
    tokens = push(reply, ids("n€"))
    output = finish(reply, tokens)
    assert output.text == "n"
    assert [value.token_id for value in listed(tokens)] == ids("n")
    assert len(tokens) == len(output.token_ids) == 4


def test_without_stop_texts_no_token_waits() -> None:
    reply = make_reply(())
    for token_id in [*ids("n€"), END]:
        [token] = push(reply, [token_id])
        assert token.logprob is not None


def test_a_reply_that_is_given_up_lists_what_waited() -> None:
    reply = make_reply(("end",))
    tokens = push(reply, ids("n") + ids("e"))
    assert len(tokens) == 1
    output = finish(reply, tokens)
    assert (output.text, len(tokens)) == ("ne", 2)
    assert listed(tokens) == list(output.logprobs or ())


def test_a_fork_goes_on_with_what_waits() -> None:
    reply = make_reply(("end",))
    given_before = push(reply, ids("n") + ids("e"))
    twin = reply.fork(reply.sequence.branch(RequestId("request-2"), 2), 0, 1.0)
    own = push(reply, ids("n") + ids("d"))
    others = push(twin, ids("a"))
    assert {token.request_id for token in others} == {"request-2"}
    assert [token.text for token in others] == ["", "ea"]
    assert len(finish(reply, own).logprobs or ()) == 1
    assert len(finish(twin, others).logprobs or ()) == 3
    assert len(given_before) == 1


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=12),
    stops=st.lists(
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join), max_size=3
    ),
    has_end=st.booleans(),
    max_tokens=st.integers(1, 60),
)
def test_exactly_the_tokens_that_begin_in_the_text_are_listed(
    *, pieces: list[str], stops: list[str], has_end: bool, max_tokens: int
) -> None:
    token_ids = [token for piece in pieces for token in ids(piece)] + [END] * has_end
    reply = make_reply(tuple(stops), max_tokens=max_tokens)
    tokens = push(reply, token_ids)
    output = finish(reply, tokens)
    stream = Detokenizer(TOKENIZER).start()
    begins = []
    for token_id in output.token_ids:
        begins.append(len(stream.text))
        stream.push(token_id)
    stream.finish()
    is_cut = len(output.text) < len(stream.text)
    expected = [
        token_id
        for token_id, begin in zip(output.token_ids, begins, strict=True)
        if not is_cut or begin < len(output.text)
    ]
    assert output.logprobs is not None
    assert [value.token_id for value in output.logprobs] == expected
    assert listed(tokens) == list(output.logprobs)
    # Nothing is lost on the way but the text that was flushed at an end from outside.
    assert [token.token_id for token in tokens] == list(output.token_ids)
    sent = "".join(token.text for token in tokens)
    assert output.text.startswith(sent)
    if reply.finish_reason() is not None:
        assert output.text == sent
