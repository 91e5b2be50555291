"""Timing attack: what a tenant's response times tell about another tenant's prompts.

The attacker has a candidate for what the victim may have asked. It sends the candidate
and times the first token::

    victim      asks the candidate, or something else of the same length (a coin decides)
    attacker    asks the candidate: was it fast?

Candidates are fresh, so each can be tried once. How well "fast" tells the two arms apart
is the area under the ROC curve: 0.5 is guessing, 1 is certainty. It is measured

- *isolated*: the attacker is another tenant, as in service; |AUC - 0.5| + 2.58 standard
  errors has to stay within 0.05;
- as a *control*: the attacker has the victim's own key, as if there were no domains. If
  the attack does not work there, the machine is too noisy and nothing was shown.

After each trial an operator's look-up says whether the victim's prompt is still cached:
what has been evicted cannot be told by anybody.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from padded_server import BLOCK_SIZE, NUM_BYTE_TOKENS

#: Of |AUC - 0.5| with its interval.
BOUND = 0.05

#: Standard errors on either side that hold 99 % of a normal distribution.
WIDTH = 2.58

#: Of trials, those after which the victim's prompt has to be cached still.
LEAST_RESIDENT = 0.99

#: Least AUC of the control by prompt length; beyond the last one it stays the same.
CONTROL_AUC = {64: 0.70, 256: 0.95}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one prompt length showed.

    Attributes:
        asked_ms: Median time of the attacker where the victim had asked the candidate.
        other_ms: The same where it had asked something else.
        error: Standard error of the AUC where both arms are alike.
        resident: Share of trials after which the victim's prompt was cached.
        verdict: ``holds``, ``leaks`` or ``inconclusive``.
    """

    num_tokens: int
    trials_per_arm: int
    auc: float
    error: float
    asked_ms: float
    other_ms: float
    resident: float
    control_trials_per_arm: int
    control_auc: float
    control_asked_ms: float
    control_other_ms: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Seconds that the attacker waited, by what the victim had asked."""

    asked: Sequence[float]
    other: Sequence[float]
    resident: float

    @property
    def auc(self) -> float:
        """How often a time of ``asked`` is the shorter one of a pair; ties count half."""
        asked, other = np.sort(self.asked), np.asarray(self.other)
        longer = np.searchsorted(asked, other, side="left")
        not_shorter = np.searchsorted(asked, other, side="right")
        return float((longer + not_shorter).mean() / 2 / len(asked))

    @property
    def error(self) -> float:
        """Standard error of the AUC if the arms do not differ (Mann and Whitney)."""
        a, b = len(self.asked), len(self.other)
        return math.sqrt((a + b + 1) / (12 * a * b))


class Client:
    """One kept connection of somebody with a key."""

    def __init__(self, url: str, authorization: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            str(parts.hostname), parts.port, timeout=60
        )
        self._headers = {
            "authorization": authorization,
            "content-type": "application/json",
        }

    def post(self, path: str, body: object) -> Any:
        """Return the answer, which must be a success."""
        self._connection.request("POST", path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise SystemExit(f"the server answered {response.status}")
        return json.loads(text)

    def close(self) -> None:
        self._connection.close()


class Trial:
    """Everybody who takes part."""

    def __init__(self, ready: dict[str, Any], *, is_isolated: bool) -> None:
        keys = {name: f"Bearer {key}" for name, key in ready["keys"].items()}
        url = ready["public_url"]
        self._model = ready["model"]
        self._victim = Client(url, keys["victim"])
        self._attacker = Client(url, keys["attacker" if is_isolated else "victim"])
        self._operator = Client(ready["admin_url"], ready["admin"])

    def run(self, asked: list[int], candidate: list[int]) -> tuple[float, bool]:
        """Return the attacker's seconds, and whether the victim's prompt is cached."""
        self._ask(self._victim, asked)
        begun_at = time.perf_counter()
        self._ask(self._attacker, candidate)
        seconds = time.perf_counter() - begun_at
        found = self._operator.post("/cache/lookup", {"tenant": "victim", "prompt": asked})
        # The last token is always computed, so its block is never matched whole.
        least = (len(asked) - 1) // BLOCK_SIZE * BLOCK_SIZE
        return seconds, found["prompts"][0]["hit_tokens"] >= least

    def close(self) -> None:
        for client in (self._victim, self._attacker, self._operator):
            client.close()

    def _ask(self, client: Client, prompt: list[int]) -> None:
        # One token, not streamed: the answer is there as soon as the first token is.
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        client.post("/v1/completions", body)


def main() -> int:
    args = _arguments()
    with _server(args) as ready:
        rows = [_measure(num_tokens, args, ready) for num_tokens in args.tokens]
    _show(rows, as_json=args.json)
    return int(any(row.verdict == "leaks" for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Attack the cache by its timing.")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--trials", type=int, default=2000, help="of each arm")
    parser.add_argument("--control-trials", type=int, default=400, help="of each arm")
    parser.add_argument("--block-ms", type=float, default=3.0, help="prefill of a block")
    parser.add_argument("--cache-blocks", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        script = Path(__file__).with_name("padded_server.py")
        sizes = [str(args.block_ms / 1000), str(args.cache_blocks)]
        process = subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, str(script), directory, *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if process.stdin is None or process.stdout is None:
            raise SystemExit("the server has no pipes")
        try:
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the server did not start")
            yield json.loads(line)
        finally:
            # The end of its input ends it.
            process.communicate(timeout=60)


def _measure(num_tokens: int, args: argparse.Namespace, ready: dict[str, Any]) -> Row:
    generator = random.Random(f"{args.seed} {num_tokens}")  # noqa: S311 -- not secrets
    isolated = _attack(num_tokens, args.trials, ready, generator, is_isolated=True)
    control = _attack(num_tokens, args.control_trials, ready, generator, is_isolated=False)
    return Row(
        num_tokens=num_tokens,
        trials_per_arm=args.trials,
        auc=isolated.auc,
        error=isolated.error,
        asked_ms=1000 * median(isolated.asked),
        other_ms=1000 * median(isolated.other),
        resident=isolated.resident,
        control_trials_per_arm=args.control_trials,
        control_auc=control.auc,
        control_asked_ms=1000 * median(control.asked),
        control_other_ms=1000 * median(control.other),
        verdict=judge(num_tokens, isolated, control),
    )


def _attack(
    num_tokens: int,
    trials_per_arm: int,
    ready: dict[str, Any],
    generator: random.Random,
    *,
    is_isolated: bool,
) -> Arms:
    # Interleaved at random, so that whatever drifts does so in both arms.
    arms = [True, False] * trials_per_arm
    generator.shuffle(arms)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    num_resident = 0
    with closing(Trial(ready, is_isolated=is_isolated)) as trial:
        for has_asked in arms:
            candidate = _fresh(generator, num_tokens)
            asked = candidate if has_asked else _fresh(generator, num_tokens)
            took, is_resident = trial.run(asked, candidate)
            seconds[has_asked].append(took)
            num_resident += is_resident
    return Arms(
        asked=seconds[True], other=seconds[False], resident=num_resident / len(arms)
    )


def judge(num_tokens: int, isolated: Arms, control: Arms) -> str:
    """Return ``holds``, ``leaks``, or ``inconclusive`` if nothing could be shown.

    That is so if the attack does not work even without domains, if prompts were evicted
    before they could be told, or if there were too few trials for the bound.
    """
    least = CONTROL_AUC[max(length for length in CONTROL_AUC if length <= num_tokens)]
    if control.auc < least or min(isolated.resident, control.resident) < LEAST_RESIDENT:
        return "inconclusive"
    width = WIDTH * isolated.error
    if width > BOUND:
        return "inconclusive"
    return "holds" if abs(isolated.auc - 0.5) + width <= BOUND else "leaks"


def _fresh(generator: random.Random, num_tokens: int) -> list[int]:
    return [generator.randrange(NUM_BYTE_TOKENS) for _ in range(num_tokens)]


def _show(rows: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"timing_attack": [asdict(row) for row in rows]}))
        return
    print("tokens  trials  AUC    +-     asked / other, ms  resident  control AUC  verdict")
    for row in rows:
        print(
            f"{row.num_tokens:6d}  {row.trials_per_arm:6d}  {row.auc:.3f}  "
            f"{WIDTH * row.error:.3f}  {row.asked_ms:8.2f} / {row.other_ms:5.2f}   "
            f"{row.resident:8.1%}  {row.control_auc:11.3f}  {row.verdict}"
        )


if __name__ == "__main__":
    sys.exit(main())
