from __future__ import annotations

import torch

from prefold.engine.logprobs import measure_rows, to_logprobs


def test_values_are_those_of_log_softmax() -> None:
    logits = torch.randn(5, 40) * 4
    token_ids = [3, 0, 39, 7, 7]
    expected = torch.log_softmax(logits.double(), dim=-1)
    rows = measure_rows(logits, token_ids, 4)
    for index, value in enumerate(to_logprobs(rows, token_ids, 3)):
        assert value.token_id == token_ids[index]
        assert abs(value.logprob - expected[index, token_ids[index]].item()) < 1e-6
        order = expected[index].sort(descending=True, stable=True).indices[:3].tolist()
        assert [token_id for token_id, _ in value.top] == order


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(6, 100)
    rows = measure_rows(logits, [1] * 6, 5)
    alone = measure_rows(logits[4:5], [1], 5)
    assert rows.chosen[4] == alone.chosen[0]
    assert (rows.top[4] == alone.top[0]).all()


def test_among_equal_logits_the_lower_id_comes_first() -> None:
    rows = measure_rows(torch.zeros(1, 9), [4], 3)
    assert rows.top_ids.tolist() == [[0, 1, 2]]


def test_no_alternatives_and_more_than_there_are() -> None:
    logits = torch.randn(1, 3)
    assert to_logprobs(measure_rows(logits, [0], 0), [0], 0)[0].top == ()
    assert len(to_logprobs(measure_rows(logits, [0], 9), [0], 9)[0].top) == 3


def test_values_enter_no_representation() -> None:
    [value] = to_logprobs(measure_rows(torch.randn(1, 30), [17], 2), [17], 2)
    assert "17" not in repr(value)
