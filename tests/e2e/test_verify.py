"""Verification on tiny real models, and the command around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedConfig

from prefold.cache import NO_CACHE, PrefixCache
from prefold.cli.main import main
from prefold.engine.batch import StepPlan
from prefold.engine.loading import LoadedModel
from prefold.engine.model_runner import ModelRunner
from prefold.engine.verification import VerificationReport, VerificationSettings, verify
from prefold.engine.verification_prompts import VerificationPrompt, built_in_prompts
from prefold.engine.verification_rig import Subject
from prefold.engine.verification_tally import DifferenceKind
from support.tiny_engines import limits_of, load_tiny, make_store, make_subject, threads
from support.tiny_models import (
    make_gemma2,
    make_llama,
    make_mistral,
    make_mixtral,
    make_phi3_longrope,
    save_model,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SETTINGS = VerificationSettings(attention="reference", numerics={})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(make_llama(), tmp_path_factory.mktemp("llama"))


def prompts_of(loaded: LoadedModel, block_size: int = 16) -> list[VerificationPrompt]:
    return built_in_prompts(limits_of(loaded), block_size)


def run(loaded: LoadedModel, block_size: int = 16) -> VerificationReport:
    subject = make_subject(loaded, block_size)
    return verify(subject, prompts_of(loaded, block_size), SETTINGS)


# Not with two threads: on a busy machine of two cores they mostly wait for each other.
@pytest.mark.parametrize("num_threads", [1, 3])
def test_llama_is_identical(llama: LoadedModel, num_threads: int) -> None:
    # Its intermediate size, 100, is no multiple of 32.
    with threads(num_threads):
        report = run(llama)
    assert report.first_difference is None
    assert report.prompts >= 40


@pytest.mark.parametrize(
    ("make_config", "block_size", "num_threads"),
    [
        (make_mistral, 16, 1),
        (make_gemma2, 4, 3),
        (make_phi3_longrope, 16, 3),
        (make_mixtral, 16, 1),
    ],
)
def test_other_families_are_identical(
    make_config: Callable[[], PreTrainedConfig],
    block_size: int,
    num_threads: int,
    tmp_path: Path,
) -> None:
    with threads(num_threads):
        report = run(load_tiny(make_config(), tmp_path), block_size)
    assert report.first_difference is None


class FlippingRunner(ModelRunner):
    """Flips one sign in a cached block when a prompt that hits it has just been matched."""

    # Set by the test; the class is made for one.
    last_token = -1
    num_flips = 0

    def execute(self, plan: StepPlan) -> torch.Tensor:
        cls = type(self)
        [piece, *_] = plan.slices
        is_hit = piece.start == 32 and piece.token_ids.tolist() == [cls.last_token]
        if is_hit and cls.num_flips == 0:
            cls.num_flips += 1
            block = int(piece.block_ids[1])
            self.store.value_view(0)[block, 3, 1, 5] *= -1
        return super().execute(plan)


def test_one_flipped_sign_in_one_cached_value_is_found(llama: LoadedModel) -> None:
    class Runner(FlippingRunner):
        pass

    prompts = [prompt for prompt in prompts_of(llama) if prompt.num_tokens <= 100]
    [victim] = [prompt for prompt in prompts if prompt.name == "length 33"]
    subject = Subject(
        make_runner=lambda num_blocks: Runner(llama, make_store(llama, num_blocks, 16)),
        fingerprint=make_subject(llama).fingerprint,
        limits=limits_of(llama),
        block_size=16,
    )

    def note(variant: str, _num_runs: int) -> None:
        Runner.last_token = int(victim.token_ids[-1]) if variant == "warm" else -1

    report = verify(subject, prompts, SETTINGS, on_progress=note)
    assert Runner.num_flips == 1
    assert not report.identical
    found = report.first_difference
    assert found is not None
    assert (found.variant, found.prompt) == ("warm", victim.name)
    assert (found.kind, found.position) == (DifferenceKind.LOGITS, 33)


def test_matching_switched_off_is_found(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acquire", "lookup"):
        real = vars(PrefixCache)[name]
        monkeypatch.setattr(
            PrefixCache, name, lambda *a, real=real, **_: real(*a, access=NO_CACHE)
        )
    prompts = [p for p in prompts_of(llama) if p.num_tokens < 60]
    report = verify(make_subject(llama), prompts, SETTINGS)
    assert not report.identical
    assert report.first_difference is not None
    assert report.first_difference.kind is DifferenceKind.HIT_TOKENS


# -- the command -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(
        make_llama(max_position_embeddings=256), tmp_path_factory.mktemp("small")
    )


@pytest.fixture(autouse=True)
def _own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PREFOLD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)


def test_the_command_prints_one_object(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(directory), "--json", "--threads", "1"]) == 0
    out, _ = capsys.readouterr()
    assert out.count("\n") == 1
    document = json.loads(out)
    assert document["identical"] is True
    assert document["attention"] == document["numerics"]["attention"]
    assert document["numerics"]["num_threads"] == 1
    assert document["first_difference"] is None
    assert {variant["name"] for variant in document["variants"]} >= {"cold", "forked"}


def test_the_command_says_what_it_found(
    directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("the canary sings\n" * 3 + "another canary song" * 5, encoding="utf-8")
    command = ["verify", str(directory), "--prompts", str(path), "--threads", "1"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "Identical: " in out
    execute = ModelRunner.execute

    def noisy(runner: ModelRunner, plan: StepPlan) -> torch.Tensor:
        return execute(runner, plan) + 1e-3 * (len(plan.slices) > 1)

    monkeypatch.setattr(ModelRunner, "execute", noisy)
    # The self-check has passed for this model before, and is not asked again.
    assert main(command) == 1
    said, also = capsys.readouterr()
    assert "NOT identical: the logits differ in the variant batched, prompt " in said
    assert "canary" not in out + err + said + also


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        ('{"prompt": "a"}\nsecret', "line 2: this is not JSON"),
        ("x" * 4000, "line 1: the prompt has 4000 tokens"),
        ('{"prompt": [1, 99999]}', "line 1: the token id at position 1"),
    ],
)
def test_bad_prompts_are_answered_in_a_sentence(
    directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    message: str,
) -> None:
    path = tmp_path / "own"
    path.write_text(content, encoding="utf-8")
    assert main(["verify", str(directory), "--prompts", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" or "Verifying" not in out
    assert message in err
    assert "secret" not in err
    assert "99999" not in err
