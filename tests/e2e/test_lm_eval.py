"""``lm_eval`` on a small few-shot task: the cache changes no score and saves prefill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Timer

import pytest

from support.server_process import ServerProcess, start_server
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_TENANTS = """
[[tenants]]
name = "cached"

[[tenants]]
name = "plain"
may_read = false
may_write = false
"""

_COLOURS = ("red", "green", "blue", "white", "black", "brown")

_CHOICE_TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{train: {train}, test: {test}}}}}
output_type: multiple_choice
training_split: train
fewshot_split: train
test_split: test
doc_to_text: "{{{{question}}}} Answer:"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
"""

_REPLY_TASK = """
task: tiny_reply
dataset_path: json
dataset_kwargs: {{data_files: {{train: {train}, test: {test}}}}}
output_type: generate_until
training_split: train
fewshot_split: train
fewshot_config: {{sampler: first_n}}
test_split: test
doc_to_text: "{{{{question}}}} Answer:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 4, temperature: 0}}
metric_list:
  - metric: exact_match
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_model(
        make_llama(max_position_embeddings=2048), tmp_path_factory.mktemp("llama")
    )
    make_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tasks")
    paths = {}
    for split, count in (("train", 8), ("test", 12)):
        paths[split] = directory / f"{split}.jsonl"
        rows = [
            {
                "question": f"Cat number {index} in the {split} yard has a colour.",
                "choices": list(_COLOURS[:4]),
                "answer": _COLOURS[index % 4],
            }
            for index in range(count)
        ]
        paths[split].write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("choice", _CHOICE_TASK), ("reply", _REPLY_TASK)):
        (directory / f"{name}.yaml").write_text(text.format(**paths))
    return directory


@pytest.fixture(scope="module")
def server(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("server")
    arguments = ("--cache-blocks", "2048")
    with start_server(model, directory, *arguments, config=_TENANTS) as running:
        running.wait_until_ready()
        yield running


def _new_key(server: ServerProcess, tenant: str) -> str:
    command = [sys.executable, "-m", "prefold.cli.main", "keys", "new", tenant]
    command += ["--config", str(server.directory / "prefold.toml"), "--json"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "XDG_STATE_HOME": str(server.directory / "state"),
    }
    done = subprocess.run(  # noqa: S603 -- the project's own program
        command, capture_output=True, text=True, check=True, env=environment
    )
    return str(json.loads(done.stdout)["key"])


#: The harness takes long to import, and to look through the tasks that it comes with: one
#: process evaluates as often as it is told, and knows the tasks of these tests alone.
_HARNESS = """
import json, os, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
tasks = TaskManager(include_path=sys.argv[1], include_defaults=False)
answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    order = json.loads(line)
    os.environ["OPENAI_API_KEY"] = order.pop("key")
    found = simple_evaluate(**order, task_manager=tasks)
    [scores], [samples] = found["results"].values(), found["samples"].values()
    replies = [(sample["doc_id"], sample["resps"]) for sample in samples]
    print(json.dumps({"scores": scores, "replies": replies}), file=answers, flush=True)
"""


#: After so long a command hangs.
_MOST_SECONDS = 240.0


class Harness:
    """A process of ``lm_eval``, which evaluates once for each order."""

    def __init__(self, tasks: Path) -> None:
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "HF_HOME": str(tasks / "hf"),
            "HF_ALLOW_CODE_EVAL": "0",
        }
        self._log = (tasks / "lm_eval.log").open("w+")
        self._process = subprocess.Popen(  # noqa: S603 -- the evaluation harness
            [sys.executable, "-c", _HARNESS, str(tasks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )

    def evaluate(self, **order: object) -> Mapping[str, object]:
        """Evaluate with these arguments of the harness; return scores and replies."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        too_long = Timer(_MOST_SECONDS, self._process.kill)
        too_long.start()
        try:
            orders.write(json.dumps(order) + "\n")
            orders.flush()
            answer = answers.readline()
        finally:
            too_long.cancel()
        self._log.seek(0)
        assert answer, self._log.read()[-3000:]
        found: Mapping[str, object] = json.loads(answer)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


@pytest.fixture(scope="module")
def harness(tasks: Path) -> Iterator[Harness]:
    running = Harness(tasks)
    yield running
    running.close()


def _evaluate(
    server: ServerProcess, model: Path, harness: Harness, tenant: str, task: str
) -> Mapping[str, object]:
    """Run one task as ``tenant``; return scores and replies."""
    about = {
        "base_url": f"{server.ready['public_url']}/v1/completions",
        "model": model.name,
        "tokenizer": str(model),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 1,
        "max_length": 2048,
    }
    return harness.evaluate(
        model="local-completions",
        model_args=",".join(f"{name}={value}" for name, value in about.items()),
        tasks=[task],
        num_fewshot=8,
        batch_size=1,
        key=_new_key(server, tenant),
    )


def _computed_prompt_tokens(server: ServerProcess, tenant: str) -> tuple[float, float]:
    """Return a tenant's prompt tokens, and how many of them were computed."""
    with server.admin() as admin:
        text = admin.get("/metrics").text
    totals = {"prefold_prompt_tokens_total": 0.0, "prefold_hit_tokens_total": 0.0}
    for line in text.splitlines():
        name = line.partition("{")[0]
        if name in totals and f'tenant="{tenant}"' in line:
            totals[name] += float(line.rpartition(" ")[2])
    asked, hit = totals.values()
    return asked, asked - hit


@pytest.mark.parametrize(
    ("task", "least_saved"),
    # The first of a question's four choices has examples of its own before it and is
    # computed; 80 % of the other three are 60 % of all.
    [("tiny_reply", 0.8), ("tiny_choice", 0.6)],
)
def test_scores_are_the_same_and_prefill_falls(
    server: ServerProcess,
    model: Path,
    harness: Harness,
    task: str,
    least_saved: float,
) -> None:
    outcomes, computed = {}, {}
    for tenant in ("plain", "cached"):
        before = _computed_prompt_tokens(server, tenant)
        outcomes[tenant] = _evaluate(server, model, harness, tenant, task)
        after = _computed_prompt_tokens(server, tenant)
        computed[tenant] = (after[0] - before[0], after[1] - before[1])
    assert outcomes["plain"] == outcomes["cached"]
    asked, without = computed["plain"]
    assert without == asked > 1000
    assert computed["cached"][0] == asked
    assert computed["cached"][1] <= (1 - least_saved) * without
