from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from prefold.cache import NO_CACHE
from prefold.cli import demo, demo_row
from prefold.cli.console import Screen
from prefold.cli.main import main
from support.sessions import BLOCK_BYTES, BLOCK_SIZE, ChainRunner, make_session, opener_of

Rows = Mapping[str, Mapping[str, object]]


def _run(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    skews: bool = False,
    is_exact: bool = True,
    num_blocks: int = 4096,
) -> tuple[int, Mapping[str, object]]:
    """Run the tour with short texts."""
    session, runner = make_session(
        num_blocks=num_blocks, max_model_len=600, is_exact=is_exact
    )
    if skews:
        # Only what was not computed from its beginning: as if a hit changed a bit.
        runner.skews = lambda piece: piece.start > 0 and len(piece.token_ids) > 1
    monkeypatch.setattr(demo, "open_session", opener_of(session))
    code = main(["demo", "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return code, json.loads(out)


@pytest.fixture(scope="module")
def tour() -> tuple[int, Rows, Mapping[str, object]]:
    """The whole tour once, at full size."""
    with pytest.MonkeyPatch.context() as patch:
        session, _ = make_session()
        patch.setattr(demo, "open_session", opener_of(session))
        documents: list[Mapping[str, object]] = []
        patch.setattr(Screen, "print_json", lambda _, each: documents.append(each))
        code = main(["demo", "--json"])
    [document] = documents
    rows = document["rows"]
    assert isinstance(rows, list)
    return code, {row["row"]: row for row in rows}, document


def test_everything_is_as_it_should_be(
    tour: tuple[int, Rows, Mapping[str, object]],
) -> None:
    code, rows, document = tour
    assert [row["faults"] for row in rows.values()] == [[]] * 7
    assert code == 0
    assert document["as_expected"] is True
    assert "evicted" not in str([row["notes"] for row in rows.values()])
    assert list(rows) == ["a", "b", "c", "d", "e-clock", "e-id", "e-template"]


def test_a_system_part_of_1024_tokens_is_hit_seven_times(
    tour: tuple[int, Rows, Mapping[str, object]],
) -> None:
    row = tour[1]["a"]
    assert row["prompt_tokens"] == [1056] * 8
    hits = row["hit_tokens"]
    assert isinstance(hits, list)
    assert hits[0] == 0
    assert min(hits[1:]) >= 1024
    assert row["compared_prompts"] == row["same_bits"] == 2


def test_a_conversation_finds_its_last_turn(
    tour: tuple[int, Rows, Mapping[str, object]],
) -> None:
    row = tour[1]["b"]
    prompts, hits, notes = row["prompt_tokens"], row["hit_tokens"], row["notes"]
    assert isinstance(prompts, list)
    assert isinstance(hits, list)
    assert isinstance(notes, list)
    assert len(prompts) == 10
    for before, hit in zip(prompts, hits[1:], strict=False):
        # At least the prompt before, and at most its reply less the last token.
        assert before - 3 <= hit <= before + 11
    assert "9 were last sampled tokens" in notes[0]
    assert "changed by re-tokenising" in notes[0]


def test_a_long_document_is_read_once(
    tour: tuple[int, Rows, Mapping[str, object]],
) -> None:
    row = tour[1]["c"]
    hits = row["hit_tokens"]
    assert isinstance(hits, list)
    assert len(hits) == 3
    assert hits[0] == 0
    assert min(hits[1:]) >= 4096
    assert row["compared_prompts"] == 1


def test_sixteen_few_shot_questions_share_their_examples(
    tour: tuple[int, Rows, Mapping[str, object]],
) -> None:
    row = tour[1]["d"]
    hits = row["hit_tokens"]
    assert isinstance(hits, list)
    assert len(hits) == 16
    assert min(hits[1:]) >= 480
    assert row["compared_prompts"] == 2


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("e-clock", "the clock's seconds differ at token {}"),
        ("e-id", "the random id differs at token {}"),
        ("e-template", "the template differs at token {}"),
    ],
)
def test_a_broken_prefix_is_named(
    key: str, words: str, tour: tuple[int, Rows, Mapping[str, object]]
) -> None:
    row = tour[1][key]
    hits, title = row["hit_tokens"], str(row["title"])
    assert isinstance(hits, list)
    assert any(words.format(hits[-1] + fewer) in title for fewer in range(4))
    assert max(hits) < 64


def test_kv_held_counts_whole_blocks_once(
    tour: tuple[int, Rows, Mapping[str, object]],
) -> None:
    held = tour[1]["a"]["kv_bytes"]
    assert isinstance(held, int)
    # One system part, and eight times a question and a reply of 8 tokens.
    assert held % BLOCK_BYTES == 0
    assert 1024 // BLOCK_SIZE + 8 * 2 <= held // BLOCK_BYTES <= 1024 // BLOCK_SIZE + 8 * 4


def test_the_figures_fit_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(demo, "open_session", opener_of(make_session()[0]))
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Traceback" not in err
    text = " ".join(out.split())
    assert "What a hit saves" in text
    assert "What it does not" in text
    assert "What may move indirectly" in text
    last = text[text.rindex("Exactness:") :]
    assert last.strip() == (
        "Exactness: yes. All 10 prompts that ran both ways gave the same tokens and the "
        "same logits, bit for bit."
    )


def test_a_cache_that_never_hits_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_row, "READ_WRITE", NO_CACHE)
    code, document = _run(monkeypatch, capsys)
    assert code == 1
    assert document["as_expected"] is False
    rows = document["rows"]
    assert isinstance(rows, list)
    assert "hit 0 tokens" in rows[0]["faults"][0]


def test_in_a_small_cache_shorter_hits_are_no_fault_but_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _run(monkeypatch, capsys, num_blocks=80)
    rows = document["rows"]
    assert isinstance(rows, list)
    assert [row["faults"] for row in rows] == [[]] * 7
    assert code == 0
    assert "evicted meanwhile" in " ".join(rows[3]["notes"])


def test_a_hit_that_changes_a_bit_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _run(monkeypatch, capsys, skews=True)
    exactness = document["exactness"]
    assert isinstance(exactness, dict)
    assert code == 1
    assert exactness["identical"] is False
    assert exactness["same_tokens"] == exactness["prompts"]
    assert 0 < exactness["max_difference"] < 1e-5


def test_where_no_exactness_is_promised_its_absence_is_told_but_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _run(monkeypatch, capsys, skews=True, is_exact=False)
    exactness = document["exactness"]
    assert isinstance(exactness, dict)
    assert (code, exactness["identical"]) == (0, False)


def test_a_small_model_gets_shorter_texts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _run(monkeypatch, capsys)
    assert code == 0
    rows = document["rows"]
    assert isinstance(rows, list)
    assert max(max(row["prompt_tokens"]) for row in rows) < 600


def test_a_model_too_small_for_the_tour_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session, _ = make_session(max_model_len=128)
    monkeypatch.setattr(demo, "open_session", opener_of(session))
    assert main(["demo"]) == 2
    assert "the tour needs prompts of 256 tokens" in capsys.readouterr().err


def test_ctrl_c_ends_the_tour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session, runner = make_session()
    assert isinstance(runner, ChainRunner)
    runner.interrupts_at = 40
    monkeypatch.setattr(demo, "open_session", opener_of(session))
    assert main(["demo"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "Interrupted."
    assert session.engine.cache.snapshot().num_leases == 0
