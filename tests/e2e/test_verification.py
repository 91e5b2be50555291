"""Verification over a runner without weights: what passes, and how faults are called."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefold.blocks.table import TOKEN_DTYPE
from prefold.cache import NO_CACHE, READ_WRITE, PrefixCache
from prefold.engine import verification_rig
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.config import ModelLimits, RequestOptions, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.request import RequestId, SamplingParams
from prefold.engine.sampler import SampledRow, Sampler, SamplerState
from prefold.engine.verification import (
    VerificationReport,
    VerificationSettings,
    verify,
)
from prefold.engine.verification_ledger import PublishedTokens
from prefold.engine.verification_prompts import (
    VerificationPrompt,
    built_in_prompts,
    encode_prompts,
    read_prompts,
    stand_ins,
)
from prefold.engine.verification_rig import Rig, StepRecorder, Subject
from prefold.engine.verification_tally import DifferenceKind
from prefold.errors import InvalidInputError
from prefold.identity.domain import Domain
from support.fake_engine import VOCAB_SIZE, FakeRunner
from support.fingerprints import make_fingerprint

LIMITS = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=2048)
VARIANTS = (
    "cold",
    "chunked 1",
    "chunked 7",
    "chunked 64",
    "chunked 512",
    "warm",
    "batched",
    "evicted",
    "preempted",
    "forked",
)


#: Enough of them for every variant.
SOME = [p for p in built_in_prompts(LIMITS, 16) if p.num_tokens <= 200][::3]


class Trial:
    """A verification that knows which variant is being run.

    Attributes:
        spoil: Changes the logits of a step of one variant.
    """

    def __init__(self, block_size: int = 16) -> None:
        self.block_size = block_size
        self.variant = ""
        self.once = ""
        self.spoil: Callable[[StepPlan, torch.Tensor], None] = lambda _plan, _logits: None
        self.subject = Subject(
            make_runner=lambda num_blocks: _TrialRunner(self, num_blocks),
            fingerprint=make_fingerprint(block_size=block_size),
            limits=LIMITS,
            block_size=block_size,
        )

    def run(
        self, prompts: list[VerificationPrompt] | None = None, **settings: object
    ) -> VerificationReport:
        return verify(
            self.subject,
            SOME if prompts is None else prompts,
            VerificationSettings(
                **{"attention": "none", "numerics": {}, **settings},  # type: ignore[arg-type]
            ),
            on_progress=self._note,
        )

    def _note(self, variant: str, _num_runs: int) -> None:
        self.variant = variant


class _TrialRunner(FakeRunner):
    def __init__(self, trial: Trial, num_blocks: int) -> None:
        super().__init__(num_blocks, trial.block_size)
        self._trial = trial

    def execute(self, plan: StepPlan) -> torch.Tensor:
        logits = super().execute(plan)
        self._trial.spoil(plan, logits)
        return logits


def assert_fault(report: VerificationReport, variant: str, kind: DifferenceKind) -> None:
    found = report.first_difference
    assert not report.identical
    assert found is not None
    assert (found.variant, found.kind) == (variant, kind)


# -- what passes -----------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [4, 16, 33])
def test_a_right_cache_is_identical(block_size: int) -> None:
    report = Trial(block_size).run(built_in_prompts(LIMITS, block_size))
    assert report.first_difference is None
    assert report.identical
    by_name = {variant.name: variant for variant in report.variants}
    assert tuple(by_name) == VARIANTS
    assert all(variant.runs > 0 for variant in report.variants)
    assert all(v.hit_tokens == v.expected_hit_tokens for v in report.variants)
    assert by_name["cold"].hit_tokens == 0
    assert by_name["warm"].hit_tokens > 1_000
    assert by_name["evicted"].evictions > 0
    assert by_name["preempted"].preemptions > 0


def test_every_prompt_can_run_in_every_variant() -> None:
    few, full = Trial().run(), Trial().run(is_full=True)
    assert full.identical
    for less, more in zip(few.variants, full.variants, strict=True):
        assert more.runs >= less.runs
    runs = {variant.name: variant.runs for variant in full.variants}
    assert runs["warm"] == 2 * full.prompts
    assert runs["cold"] == runs["batched"] == full.prompts
    assert runs["forked"] > full.prompts


def test_the_built_in_prompts_lie_at_the_edges_and_share_beginnings() -> None:
    prompts = built_in_prompts(LIMITS, 16)
    lengths = [prompt.num_tokens for prompt in prompts]
    assert len(prompts) >= 40
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    assert {1, 15, 16, 17, 32, 48, 160} <= set(lengths)
    assert sum(length >= 1_000 for length in lengths) == 2
    texts = [prompt.token_ids.tolist() for prompt in prompts]
    shared = [
        (one, other)
        for one in texts
        for other in texts
        if one is not other and one[:32] == other[:32] and len(one) > 32 < len(other)
    ]
    assert len(shared) > 20


def test_equal_arguments_give_equal_prompts() -> None:
    one, other = built_in_prompts(LIMITS, 16), built_in_prompts(LIMITS, 16)
    for left, right in zip(one, other, strict=True):
        assert np.array_equal(left.token_ids, right.token_ids)


def test_a_prompt_says_nothing_of_its_content() -> None:
    [prompt] = [p for p in built_in_prompts(LIMITS, 16) if p.name == "length 15"]
    assert str(prompt.token_ids[0]) not in repr(prompt).replace("15", "")


def test_the_report_is_one_object_of_plain_values() -> None:
    document = json.loads(json.dumps(Trial().run().to_json()))
    assert set(document) == {
        "identical",
        "prompts",
        "seconds",
        "tolerance",
        "attention",
        "numerics",
        "first_difference",
        "variants",
    }
    assert document["first_difference"] is None
    for variant in document["variants"]:
        assert set(variant) == {
            "name",
            "runs",
            "hit_tokens",
            "expected_hit_tokens",
            "tokens_compared",
            "logits_compared",
            "preemptions",
            "evictions",
        }


def test_short_prompts_of_ones_own_run_with_stand_ins() -> None:
    own = [
        VerificationPrompt(name=f"line {n}", token_ids=np.full(n, 7, dtype=TOKEN_DTYPE))
        for n in (1, 2, 3)
    ]
    assert Trial().run([*own, *stand_ins(LIMITS, 16)]).identical


def test_many_prompts_with_one_first_token_are_no_fault() -> None:
    # More than the cache compares inside a block, as with a start token.
    own = [
        VerificationPrompt(
            name=f"line {n}",
            token_ids=np.array([1, 2, 3, 4, 5, n, n, n], dtype=TOKEN_DTYPE),
        )
        for n in range(12)
    ]
    assert Trial().run([*own, *stand_ins(LIMITS, 16)]).identical


# -- what fails ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_bit_of_one_logit_is_found(variant: str) -> None:
    trial = Trial()
    num_spoilt = 0

    def spoil(_plan: StepPlan, logits: torch.Tensor) -> None:
        nonlocal num_spoilt
        # One step, and all of those without the cache: only a repeated one shows it.
        if trial.variant == variant and len(logits) and variant in ("cold", trial.once):
            num_spoilt += 1
            logits[-1, 0] = num_spoilt * 1e-30
            trial.once = ""

    trial.once = variant
    trial.spoil = spoil
    report = trial.run()
    assert_fault(report, variant, DifferenceKind.LOGITS)
    assert report.first_difference is not None
    assert report.first_difference.prompt is not None
    assert report.first_difference.position is not None


def test_minus_zero_is_not_zero() -> None:
    trial = Trial()

    def spoil(_plan: StepPlan, logits: torch.Tensor) -> None:
        if trial.variant == "warm":
            logits[logits == 0] = -0.0

    trial.spoil = spoil
    assert_fault(trial.run(), "warm", DifferenceKind.LOGITS)


def test_another_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial()
    sample_batch = Sampler.sample_batch

    def off_by_one(
        sampler: Sampler, logits: torch.Tensor, states: Sequence[SamplerState]
    ) -> list[SampledRow]:
        rows = sample_batch(sampler, logits, states)
        if trial.variant != "batched":
            return rows
        return [SampledRow(token_id=(row.token_id or 0) ^ 1, error=None) for row in rows]

    monkeypatch.setattr(Sampler, "sample_batch", off_by_one)
    assert_fault(trial.run(), "batched", DifferenceKind.TOKEN)


def test_a_tolerance_is_a_share_of_the_largest_logit() -> None:
    trial = Trial()

    def spoil(_plan: StepPlan, logits: torch.Tensor) -> None:
        if trial.variant == "warm":
            logits += 0.01

    trial.spoil = spoil
    assert_fault(trial.run(tolerance=0.009), "warm", DifferenceKind.LOGITS)
    assert trial.run(tolerance=0.011).identical


def test_a_failing_run_is_found() -> None:
    trial = Trial()

    def spoil(_plan: StepPlan, logits: torch.Tensor) -> None:
        if trial.variant == "evicted":
            logits[:] = torch.nan

    trial.spoil = spoil
    assert_fault(trial.run(), "evicted", DifferenceKind.ENDING)


def test_a_cache_that_never_hits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire, lookup = PrefixCache.acquire, PrefixCache.lookup

    def blind(call: Callable[..., object]) -> Callable[..., object]:
        return lambda *args, **_access: call(*args, access=NO_CACHE)

    monkeypatch.setattr(PrefixCache, "acquire", blind(acquire))
    monkeypatch.setattr(PrefixCache, "lookup", blind(lookup))
    found = Trial().run().first_difference
    assert found is not None
    assert found.kind is DifferenceKind.HIT_TOKENS
    assert found.variant in ("chunked 1", "chunked 7", "warm")


def test_a_reference_that_hits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def always_cached(_domain: str | None) -> RequestOptions:
        return RequestOptions(domain=Domain("verify"), access=READ_WRITE)

    monkeypatch.setattr(verification_rig, "options_for", always_cached)
    assert_fault(Trial().run(), "cold", DifferenceKind.HIT_TOKENS)


def test_chunks_that_are_not_cut_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Rig.engine
    monkeypatch.setattr(Rig, "engine", lambda rig, _max_step_tokens=None: engine(rig))
    assert_fault(Trial().run(), "chunked 1", DifferenceKind.STEPS)


def test_a_batch_of_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_at_a_time(*, max_step_tokens: int, max_running: int) -> SchedulerConfig:
        limit = 1 if max_step_tokens == 512 else max_running
        return SchedulerConfig(max_step_tokens=max_step_tokens, max_running=limit)

    monkeypatch.setattr(verification_rig, "SchedulerConfig", one_at_a_time)
    assert_fault(Trial().run(), "batched", DifferenceKind.ALONE)


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        ("evicted", DifferenceKind.NOT_EVICTED),
        ("preempted", DifferenceKind.NOT_PREEMPTED),
    ],
)
def test_a_pool_that_is_too_large_is_found(
    variant: str, kind: DifferenceKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial()
    init = Rig.__init__

    def roomy(rig: Rig, subject: Subject, num_blocks: int) -> None:
        init(rig, subject, num_blocks + 500 * (trial.variant == variant))

    monkeypatch.setattr(Rig, "__init__", roomy)
    assert_fault(trial.run(), variant, kind)


def test_forks_that_share_nothing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = built_in_prompts(LIMITS, 16)

    def fork(engine: Engine, _parent: RequestId, num_forks: int) -> list[RequestId]:
        params = SamplingParams(max_tokens=2, return_logits=True)
        options = RequestOptions(access=NO_CACHE)
        return [
            engine.submit(prompts[5].token_ids, params, options=options)
            for _ in range(num_forks)
        ]

    monkeypatch.setattr(Engine, "fork", fork)
    assert_fault(Trial().run(), "forked", DifferenceKind.NOT_SHARED)


def test_a_variant_without_runs_is_found() -> None:
    prompt = VerificationPrompt(name="one", token_ids=np.array([5], dtype=TOKEN_DTYPE))
    assert_fault(Trial().run([prompt]), "forked", DifferenceKind.NO_RUNS)


def test_a_leak_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial()
    run = Rig.run

    def leaky(rig: Rig, *args: object) -> object:
        if trial.variant == "chunked 64":
            tokens = np.arange(3, dtype=TOKEN_DTYPE)
            lease = rig.cache.acquire(trial.subject.fingerprint, Domain("leak"), tokens)
            rig.cache.reserve(lease, 3)
        return run(rig, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Rig, "run", leaky)
    assert_fault(trial.run(), "chunked 64", DifferenceKind.LEAK)


def test_the_recorder_sees_who_writes_where() -> None:
    def piece(start: int, num_tokens: int, blocks: list[int]) -> SequenceSlice:
        return SequenceSlice(
            token_ids=np.ones(num_tokens, dtype=np.int64),
            start=start,
            block_ids=np.array(blocks, dtype=np.int32),
            num_logits=0,
        )

    class Idle:
        def execute(self, _plan: StepPlan) -> torch.Tensor:
            return torch.empty(0, 1)

        def copy_blocks(self, _copies: object) -> None:
            pass

    recorder = StepRecorder(Idle(), 4)
    recorder.execute(StepPlan(slices=(piece(4, 1, [0, 1]), piece(4, 3, [0, 2]))))
    assert (recorder.num_shared_blocks, recorder.num_shared_writes) == (1, 0)
    recorder.execute(StepPlan(slices=(piece(0, 8, [0, 1]),)))
    assert (recorder.num_steps, recorder.num_lonely_steps) == (2, 1)
    assert recorder.num_shared_writes == 0
    recorder.execute(StepPlan(slices=(piece(4, 1, [0, 1]), piece(3, 2, [0, 2]))))
    assert recorder.num_shared_writes == 1


# -- the ledger ------------------------------------------------------------------------


@given(
    block_size=st.integers(1, 6),
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), max_size=8),
)
def test_the_ledger_and_the_cache_agree(block_size: int, prompts: list[list[int]]) -> None:
    cache = PrefixCache(num_blocks=400, block_size=block_size, clock=lambda: 0.0)
    ledger = PublishedTokens(block_size)
    fingerprint = make_fingerprint(block_size=block_size)
    domain = Domain("d")
    for prompt in prompts:
        tokens = np.array(prompt, dtype=TOKEN_DTYPE)
        lease = cache.acquire(fingerprint, domain, tokens)
        expected = ledger.expect(tokens)
        assert expected.least <= lease.num_hit_tokens <= expected.most
        cache.reserve(lease, len(tokens))
        if lease.copy_source is not None:
            cache.copied(lease)
        cache.release(lease, tokens, len(tokens))
        ledger.add(tokens)


@pytest.mark.parametrize(
    ("prompt", "hits"),
    [
        ([1], 0),
        ([1, 2, 3, 4, 5], 4),
        ([1, 2, 3, 9], 0),
        ([1, 2, 3, 4, 9], 4),
        ([1, 2, 3, 4, 5, 6, 7, 8], 7),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], 8),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 8),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14], 12),
    ],
)
def test_the_ledger_counts_whole_blocks_and_four_tokens_inside_one(
    prompt: list[int], hits: int
) -> None:
    ledger = PublishedTokens(8)
    ledger.add(list(range(1, 13)))
    found = ledger.expect(np.array(prompt, dtype=TOKEN_DTYPE))
    assert (found.least, found.most) == (hits, hits)


# -- files of prompts ------------------------------------------------------------------


class Bytes:
    """An encoder of one token a byte."""

    def encode(self, text: str) -> list[int]:
        return [byte % VOCAB_SIZE for byte in text.encode()]


def read(path: Path) -> list[VerificationPrompt]:
    return encode_prompts(read_prompts(path), Bytes(), LIMITS)


def test_text_lines_are_prompts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\n  \ntwo words\n{not json}")
    prompts = read(path)
    assert [prompt.name for prompt in prompts] == ["line 1", "line 4", "line 5"]
    assert [prompt.num_tokens for prompt in prompts] == [3, 9, 10]


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.txt"])
def test_json_lines_hold_text_or_token_ids(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('{"prompt": "abc", "other": 1}\n{"prompt": [5, 6]}\n')
    assert [prompt.num_tokens for prompt in read(path)] == [3, 2]


SECRET = "hunter2"  # noqa: S105 -- text of a prompt


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b"", "holds no prompts"),
        ("p.txt", b"\n \n", "holds no prompts"),
        ("p.txt", b"fine\n\xff\xfehunter2\n", "line 2: this is not UTF-8"),
        ("p.txt", b"fine\n" + b"hunter2" * 400, "line 2: the prompt has 2800 tokens"),
        ("p.txt", b"hunter2" * 290, "line 1: the prompt has 2030 tokens, and 2016"),
        ("p.jsonl", b'{"prompt": "a"}\nhunter2', "line 2: this is not JSON"),
        ("p.jsonl", b'"hunter2"', 'line 1: this is no object with a "prompt"'),
        ("p.jsonl", b'{"promt": "hunter2"}', 'line 1: this is no object with a "prompt"'),
        ("p.jsonl", b'{"prompt": ["hunter2"]}', 'line 1: "prompt" must be a text or'),
        ("p.jsonl", b'{"prompt": [true]}', 'line 1: "prompt" must be a text or'),
        ("p.jsonl", b'{"prompt": []}', "line 1: the prompt is empty"),
        ("p.jsonl", b'{"prompt": ""}', "line 1: the prompt is empty"),
        ("p.jsonl", b'{"prompt": [1, 7777]}', "line 1: the token id at position 1"),
        ("p.jsonl", b'{"prompt": [-7777]}', "line 1: the token id at position 0"),
        ("p.jsonl", b'{"prompt": [%d]}' % 10**30, "line 1: "),
        ("p.jsonl", b"[" * 100_000, "line 1: this is not JSON"),
    ],
)
def test_a_mistake_in_a_file_is_named_by_its_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInputError) as caught:
        read(path)
    error: BaseException | None = caught.value
    assert message in str(error)
    while error is not None:
        assert SECRET not in str(error)
        assert "7777" not in str(error)
        error = None if error.__suppress_context__ else error.__cause__ or error.__context__


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match=r"missing\.txt cannot be read: No such file"
    ):
        read(tmp_path / "missing.txt")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read(tmp_path)


def test_prompts_leave_room_for_a_reply() -> None:
    limits = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=100)
    assert max(p.num_tokens for p in built_in_prompts(limits, 16)) <= 100 - 32
