"""How fast ``prefold advise`` is, and whether the savings it foretells come true.

    python benchmarks/advise.py --traces DIR
    python benchmarks/advise.py --small --json       made-up prompts, no model

Three parts:

- *rows*: ``prefold advise`` on a million made-up rows of block ids, as a process of its
  own: seconds and memory, of which it may take 180 s and 2 GiB.
- *chats*: the same on 20,000 chat requests with text and a clock in front, linted: 180 s.
- *real*: recorded dialogues and few-shot prompts with a clock at the top. What lint says
  that moving it would save is compared with a run of both variants on a model: prompt
  tokens hit, and seconds to the first token. It may be 15 % off. Prefill is priced by the
  fit to the steps of the first run, before anything of the second is known. Some minutes;
  the parts *dialogues* and *few-shot* are one of its two loads each.

Exit code 1 if a bound is not met.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prefold.advisor.advice import Prices
from prefold.advisor.lint import Lint, lint
from prefold.advisor.prompt_log import LoggedPrompt, read_log
from prefold.engine.assembly import Silence
from prefold.engine.demo_model import ensure_demo_model
from prefold.engine.engine import Engine
from prefold.engine.request import SamplingParams
from prefold.errors import InvalidInputError

MAX_SECONDS = 180.0
MAX_BYTES = 2 * 2**30
MAX_ERROR = 0.15

#: Parts of the part *real*.
REAL_LOADS = frozenset({"dialogues", "few-shot"})

Row = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    rows: int
    chats: int
    dialogues: int
    questions: int


FULL = Sizes(rows=1_000_000, chats=20_000, dialogues=2, questions=16)
SMALL = Sizes(rows=2_000, chats=100, dialogues=1, questions=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one run of the command took."""

    what: str
    requests: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    verdict: str
    breakers: Sequence[str]

    @property
    def passed(self) -> bool:
        return self.seconds <= MAX_SECONDS and self.peak_bytes <= MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was foretold, and what came of it.

    Attributes:
        kind: What lint found first.
        share: Of the requests, those it breaks.
        told_tokens: Prompt tokens that would be hit besides.
        real_tokens: Those that were.
        told_s: Prefill that would be saved.
        real_s: Seconds by which the first tokens came sooner, all together.
    """

    what: str
    requests: int
    kind: str
    share: float
    told_tokens: int
    real_tokens: int
    told_s: float
    real_s: float

    @property
    def token_error(self) -> float:
        return abs(self.told_tokens / self.real_tokens - 1) if self.real_tokens else 1.0

    @property
    def time_error(self) -> float:
        return abs(self.told_s / self.real_s - 1) if self.real_s > 0 else 1.0

    @property
    def passed(self) -> bool:
        is_near = max(self.token_error, self.time_error) <= MAX_ERROR
        return is_near and self.kind == "clock"


def main() -> int:
    arguments = _parse()
    sizes = SMALL if arguments.small else FULL
    parts = arguments.parts.split(",")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            speeds = list(_speeds(parts, sizes, Path(scratch), arguments.traces))
            comparisons = list(_real(parts, sizes, Path(scratch), arguments))
    except InvalidInputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    passed = all(it.passed for it in speeds) and all(it.passed for it in comparisons)
    if arguments.json:
        document = {
            "passed": passed,
            "speeds": [asdict(each) for each in speeds],
            "comparisons": [
                {
                    **asdict(each),
                    "token_error": each.token_error,
                    "time_error": each.time_error,
                }
                for each in comparisons
            ],
        }
        print(json.dumps(document))
    else:
        _show(speeds, comparisons)
    return 0 if passed else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, help="directory of the recorded texts")
    parser.add_argument("--model", help="for the real runs; the demo model by default")
    parser.add_argument("--parts", default="rows,chats,real", help="which to run")
    parser.add_argument("--dialogues", type=int, help="how many are run, if not 2")
    parser.add_argument("--small", action="store_true", help="little of everything")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _show(speeds: Sequence[Speed], comparisons: Sequence[Comparison]) -> None:
    for each in speeds:
        print(
            f"{each.what}: {each.requests:,} requests in {each.seconds:.0f} s "
            f"({each.cpu_seconds:.0f} s of CPU) and {each.peak_bytes / 2**30:.2f} GiB; "
            f"{each.verdict} {', '.join(each.breakers)}"
        )
    for it in comparisons:
        print(
            f"{it.what}: {it.requests} requests, {it.kind} in {it.share:.0%}; tokens "
            f"{it.told_tokens:,} told, {it.real_tokens:,} real ({it.token_error:.1%} off); "
            f"{it.told_s:.1f} s told, {it.real_s:.1f} s real ({it.time_error:.1%} off)"
        )


# -- speed -----------------------------------------------------------------------------


def _speeds(
    parts: Sequence[str], sizes: Sizes, scratch: Path, traces: Path | None
) -> Iterator[Speed]:
    if "rows" in parts:
        path = _write(scratch / "rows.jsonl.gz", _block_rows(sizes.rows))
        yield _timed("rows", path)
    if "chats" in parts:
        made = _made_up(sizes.chats)
        rows = made if traces is None else _repeated(_dialogues(traces, None), sizes.chats)
        path = _write(scratch / "chats.jsonl.gz", _with_clock(rows))
        yield _timed("chats", path)


def _timed(what: str, path: Path) -> Speed:
    """Run the command; its memory is that of the largest child so far, which it is."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(  # noqa: S603 -- the project's own command
        [sys.executable, "-m", "prefold.cli.main", "advise", str(path), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = json.loads(done.stdout)
    return Speed(
        what=what,
        requests=document["requests"],
        seconds=seconds,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_bytes=after.ru_maxrss * 1024,
        verdict=document["verdict"],
        breakers=[f"{it['what']} ({it['share']:.0%})" for it in document["breakers"]],
    )


def _write(path: Path, rows: Iterator[Row]) -> Path:
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def _block_rows(count: int) -> Iterator[Row]:
    """Yield conversations of several turns between prompts that never come again."""
    dice = random.Random(1)  # noqa: S311 -- made-up traffic
    next_id = 10_000
    systems = [[1000 * number, 40 + 5 * number] for number in range(8)]
    open_talks: list[list[list[int]]] = []
    for number in range(count):
        kind = dice.random()
        blocks = dice.randint(1, 12)
        if kind < 0.25:
            runs = [[next_id, 6 * blocks]]
            next_id += 6 * blocks
        else:
            if open_talks and kind < 0.75:
                talk = open_talks.pop(dice.randrange(len(open_talks)))
            else:
                talk = [dice.choice(systems)]
            runs = [*talk, [next_id, blocks]]
            next_id += blocks
            if len(runs) < 8:
                open_talks.append(runs)
        num_blocks = sum(run[1] for run in runs)
        yield {
            "t": round(number / 20, 2),
            "n": 16 * num_blocks + dice.randrange(16),
            "o": dice.randint(1, 400),
            "r": runs,
            "tenant": f"tenant-{number % 7}",
        }


# -- prompts ---------------------------------------------------------------------------


def _dialogues(traces: Path, count: int | None) -> Iterator[Row]:
    """Yield a request for each assistant message of recorded dialogues."""
    with gzip.open(
        traces / "tau_airline_dialogues.jsonl.gz", "rt", encoding="utf-8"
    ) as file:
        for number, line in enumerate(file):
            if number == count:
                return
            messages = json.loads(line)["messages"]
            for end, message in enumerate(messages):
                if message["role"] == "assistant":
                    yield {"model": "m", "messages": messages[:end]}


def _questions(traces: Path, count: int) -> Iterator[Row]:
    """Yield few-shot prompts, each with its question, of two tasks in turns."""
    with gzip.open(traces / "bbh_fewshot.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    prompts = {row["task"]: row["prompt"] for row in rows if "prompt" in row}
    tasks = sorted(prompts, key=lambda task: len(prompts[task]))[8:10]
    asked = [
        [row for row in rows if row.get("task") == task and "q" in row] for task in tasks
    ]
    for number in range(count):
        row = asked[number % 2][number // 2]
        yield {"model": "m", "prompt": f"{prompts[row['task']]}\n\nQ: {row['q']}\nA:"}


def _made_up(count: int) -> Iterator[Row]:
    rules = "".join(f"Rule {n}: be kind to customer number {n}. " for n in range(100))
    for number in range(count):
        question = f"Where is order {number * 7919 % 100_003}?"
        messages = [
            {"role": "system", "content": rules},
            {"role": "user", "content": question},
        ]
        yield {"model": "m", "messages": messages}


def _repeated(rows: Iterator[Row], count: int) -> Iterator[Row]:
    its = list(rows)
    for number in range(count):
        yield its[number % len(its)]


def _with_clock(rows: Iterator[Row]) -> Iterator[Row]:
    """Put the time of day in front of each prompt, seven seconds later each time."""
    for number, row in enumerate(rows):
        seconds = 9 * 3600 + 7 * number
        clock = f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        line = f"The time is {clock}.\n"
        timed: Row = {**row, "time": 7.0 * number}
        if "prompt" in row:
            timed["prompt"] = f"{line}{row['prompt']}"
        else:
            messages = row["messages"]
            if not isinstance(messages, list):
                raise InvalidInputError("a dialogue has no messages")
            first = messages[0]
            content = f"{line}{first['content']}"
            timed["messages"] = [{**first, "content": content}, *messages[1:]]
        yield timed


# -- real runs -------------------------------------------------------------------------


def _real(
    parts: Sequence[str], sizes: Sizes, scratch: Path, arguments: argparse.Namespace
) -> Iterator[Comparison]:
    traces: Path | None = arguments.traces
    names = REAL_LOADS if "real" in parts else REAL_LOADS.intersection(parts)
    if not names or traces is None:
        return
    model = arguments.model or str(ensure_demo_model(Silence()))
    cases = {
        "dialogues": _dialogues(traces, arguments.dialogues or sizes.dialogues),
        "few-shot": _questions(traces, sizes.questions),
    }
    for what, rows in cases.items():
        if what not in names:
            continue
        path = _write(scratch / f"{what}.jsonl.gz", _with_clock(rows))
        yield _compare(what, read_log(path).prompts, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What a run of some prompts came to."""

    seconds: float
    num_hit_tokens: int
    engine: Engine


def _compare(what: str, prompts: Sequence[LoggedPrompt], model: str) -> Comparison:
    first = _serve(prompts, model)
    fit = first.engine.parts.cache.cost.fit
    tokenizer = first.engine.parts.tokenizer
    if fit is None or tokenizer is None:
        raise InvalidInputError("too little was computed to price prefill")
    prices = Prices(prefill=fit, decode_ms=0.0, bytes_per_token=1.0)
    found = lint(prompts, prices, _counter(tokenizer.encode))
    first.engine.close()
    second = _serve(found.rewritten, model)
    second.engine.close()
    return _comparison(what, found, first, second)


def _comparison(what: str, found: Lint, first: _Run, second: _Run) -> Comparison:
    if not found.breakers:
        raise InvalidInputError(f"lint found nothing in the {what}")
    return Comparison(
        what=what,
        requests=len(found.rewritten),
        kind=found.breakers[0].kind.value,
        share=found.breakers[0].share,
        told_tokens=sum(it.saved_tokens for it in found.breakers),
        real_tokens=second.num_hit_tokens - first.num_hit_tokens,
        told_s=sum(it.saved_ms for it in found.breakers) / 1000,
        real_s=first.seconds - second.seconds,
    )


def _counter(encode: Callable[..., list[int]]) -> Callable[[str], float]:
    return lambda text: float(len(encode(text, add_special_tokens=False)))


def _serve(prompts: Sequence[LoggedPrompt], model: str) -> _Run:
    """Serve prompts one after the other on a new engine; the first one warms it up."""
    engine = Engine.from_pretrained(model, cache_memory="1GiB")
    params = SamplingParams(max_tokens=1)
    engine.generate(["What is a fox? " * 40], params)
    seconds, num_hit_tokens = 0.0, 0
    for prompt in prompts:
        text = "".join(segment.text for segment in prompt.segments)
        [output] = engine.generate([text], params)
        seconds += output.timing.ttft_s or 0.0
        num_hit_tokens += output.usage.cached_tokens
    return _Run(seconds=seconds, num_hit_tokens=num_hit_tokens, engine=engine)


if __name__ == "__main__":
    sys.exit(main())
