from __future__ import annotations

import json

import pytest

from prefold.cli import generate
from prefold.cli.console import Screen
from prefold.cli.main import main
from prefold.cli.opening import Session
from prefold.errors import EngineStoppedError
from support.sessions import ChainRunner, make_session, opener_of


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> tuple[Session, ChainRunner]:
    session, runner = make_session(max_model_len=256)
    monkeypatch.setattr(generate, "open_session", opener_of(session))
    return session, runner


def _assert_closed(session: Session, *, is_used: bool = True) -> None:
    if not is_used:
        return
    with pytest.raises(EngineStoppedError):
        session.engine.submit([1])
    assert session.engine.cache.snapshot().num_leases == 0


def test_text_and_cache_facts_are_printed(
    opened: tuple[Session, ChainRunner], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--prompt", "Good day to you", "--max-tokens", "5"]) == 0
    out, _ = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("Model: chain")
    assert "Prompt: " in out
    assert "0 hit: nothing is cached from token 0 on." in out
    assert "Reply: 5 tokens, the first after" in out
    _assert_closed(opened[0])


def test_the_second_request_hits(
    opened: tuple[Session, ChainRunner], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "--prompt", "Good day to you", "--repeat", "2", "--json"]
    assert main([*arguments, "--max-tokens", "4"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert out.count("\n") == 1
    first, second = document["requests"]
    assert (first["hit_tokens"], first["miss"]["kind"]) == (0, "never_seen")
    # All but the last token, and up to three fewer where a block partly agrees.
    assert 1 <= second["prompt_tokens"] - second["hit_tokens"] <= 4
    assert second["token_ids"] == first["token_ids"]
    assert len(first["token_ids"]) == first["completion_tokens"] == 4
    assert "Request 2 of 2" in err
    _assert_closed(opened[0])


def test_raw_and_chat_are_different_prompts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(generate, "open_session", opener_of(make_session()[0]))
    assert main(["generate", "--prompt", "abc", "--raw", "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)["requests"][0]["prompt_tokens"]
    monkeypatch.setattr(generate, "open_session", opener_of(make_session()[0]))
    assert main(["generate", "--prompt", "abc", "--system", "s", "--json"]) == 0
    chat = json.loads(capsys.readouterr().out)["requests"][0]["prompt_tokens"]
    assert raw == 1  # "abc" is one token
    assert chat > raw + len("<system>s<user><assistant>")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [("", "the prompt is empty"), ("x " * 300, "max_model_len is 256")],
)
def test_a_prompt_that_cannot_be_served_is_a_sentence(
    prompt: str,
    words: str,
    opened: tuple[Session, ChainRunner],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["generate", "--prompt", prompt, "--json"]) == 2
    _assert_closed(opened[0], is_used=bool(prompt))
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err.splitlines()[-1]


def test_a_prompt_beyond_the_capacity_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session, _ = make_session(num_blocks=4)
    monkeypatch.setattr(generate, "open_session", opener_of(session))
    assert main(["generate", "--prompt", "x " * 100]) == 2
    assert capsys.readouterr().err.startswith("Error: ")
    _assert_closed(session)


def test_a_template_that_is_not_there_cannot_be_applied(
    opened: tuple[Session, ChainRunner], capsys: pytest.CaptureFixture[str]
) -> None:
    opened[0].tokenizer.chat_template = None
    assert main(["generate", "--prompt", "x", "--chat"]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_a_failed_step_is_a_sentence(
    opened: tuple[Session, ChainRunner], capsys: pytest.CaptureFixture[str]
) -> None:
    opened[1].fails_at = 3
    assert main(["generate", "--prompt", "x"]) == 2
    assert "the step failed with RuntimeError" in capsys.readouterr().err
    _assert_closed(opened[0])


@pytest.mark.parametrize("at_call", [1, 3])
def test_ctrl_c_closes_the_engine(
    at_call: int, opened: tuple[Session, ChainRunner], capsys: pytest.CaptureFixture[str]
) -> None:
    opened[1].interrupts_at = at_call
    assert main(["generate", "--prompt", "x", "--json"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "Interrupted."
    _assert_closed(opened[0])


def test_a_reply_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(as_json=False)
    screen.write("a\x1b[2Jb\tc\n[bold]d")
    assert capsys.readouterr().out == "a\N{REPLACEMENT CHARACTER}[2Jb\tc\n[bold]d"
