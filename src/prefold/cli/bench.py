"""The work of ``prefold bench serving``: a load on a server, and what came of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace

import httpx2

from prefold.cli.bench_client import Answer, BenchClient, Target
from prefold.cli.bench_load import make_conversations, run_load
from prefold.cli.bench_options import BenchOptions
from prefold.cli.bench_summary import Distribution, Summary, summarize
from prefold.cli.console import Screen, format_seconds
from prefold.errors import InvalidInputError

_URL_HINT = "in a user or password, write / as %2F, ? as %3F, # as %23 and @ as %40"


def run_bench(options: BenchOptions) -> int:
    """Send the load; return 1 if a request failed."""
    target = Target(
        base_url=_check_url(options.base_url),
        model=options.model or "",
        api_key=options.api_key,
        endpoint=options.endpoint,
        extra=_extra(options.extra_body),
        timeout_s=options.timeout_s,
    )
    with Screen(as_json=options.as_json) as screen:
        target, summary = asyncio.run(_run(target, options, screen))
        _show(screen, target, options, summary)
    return 1 if summary.num_failed else 0


async def _run(
    target: Target, options: BenchOptions, screen: Screen
) -> tuple[Target, Summary]:
    load = options.load
    if not target.model:
        async with BenchClient(target, max_connections=1) as client:
            target = replace(target, model=await client.find_model())
    conversations = make_conversations(load)
    num_answers = 0

    def on_answer(_: Answer) -> None:
        nonlocal num_answers
        num_answers += 1
        screen.advance(num_answers)

    screen.begin_runs(
        f"Sending {load.requests} requests, {load.concurrency} at a time", load.requests
    )
    began_at = time.perf_counter()
    async with BenchClient(target, max_connections=load.concurrency) as client:
        answers = await run_load(
            client,
            conversations,
            concurrency=load.concurrency,
            max_tokens=load.max_tokens,
            on_answer=on_answer,
        )
    summary = summarize(answers, time.perf_counter() - began_at)
    screen.end()
    return target, summary


def _check_url(url: str) -> str:
    # No message repeats it, nor what is wrong with which part: a password may be in it.
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as exc:
        raise InvalidInputError(f"--base-url is no URL; {_URL_HINT}") from exc
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInputError(
            "--base-url must begin with http:// or https:// and a host, such as "
            "http://127.0.0.1:8000/v1"
        )
    if b"@" in parsed.raw_path or "@" in parsed.fragment:
        # What stands before it is then no password to a URL, and would be shown.
        raise InvalidInputError(f"--base-url has an @ after its host; {_URL_HINT}")
    return url


def _extra(text: str) -> Mapping[str, object]:
    try:
        fields = json.loads(text)
    except ValueError as exc:
        raise InvalidInputError(
            f"--extra-body must be a JSON object, such as '{{\"top_k\": 1}}': {exc}"
        ) from exc
    if not isinstance(fields, dict):
        raise InvalidInputError("--extra-body must be a JSON object, with braces around it")
    return fields


def _show(screen: Screen, target: Target, options: BenchOptions, summary: Summary) -> None:
    if screen.as_json:
        load = {**asdict(options.load), "scenario": options.load.scenario.value}
        screen.print_json(
            {
                "base_url": target.shown_url,
                "model": target.model,
                "endpoint": target.endpoint.value,
                "load": load,
                **summary.to_json(),
            }
        )
        return
    for line in _lines(target, options, summary):
        screen.print_line(line)
    for error, count in summary.errors.items():
        screen.say(f"{count} failed: {error}.", style="red")


def _lines(target: Target, options: BenchOptions, summary: Summary) -> list[str]:
    share, rate = summary.cached_share, summary.reply_tokens_per_s
    num_good = summary.num_requests - summary.num_failed
    answered = f"{num_good} of {summary.num_requests}"
    cached = "not reported"
    if share is not None:
        cached = (
            f"{summary.cached_tokens:,} of {summary.prompt_tokens:,} prompt tokens, "
            f"{share:.1%}"
        )
    tokens = "" if rate is None else f", {rate:.1f} reply tokens a second"
    return [
        f"{options.load.scenario.value} on {target.model} at {target.shown_url}",
        f"  answered       {answered} in {format_seconds(summary.duration_s)}",
        f"  throughput     {summary.requests_per_s:.2f} requests a second{tokens}",
        f"  cached         {cached}",
        f"  first token    {_spread(summary.ttft_s)}",
        f"  next tokens    {_spread(summary.tpot_s)}",
        f"  whole answer   {_spread(summary.total_s)}",
    ]


def _spread(distribution: Distribution | None) -> str:
    if distribution is None:
        return "nothing to measure"
    return (
        f"median {format_seconds(distribution.p50)}, "
        f"90 % {format_seconds(distribution.p90)}, "
        f"99 % {format_seconds(distribution.p99)}, "
        f"mean {format_seconds(distribution.mean)}"
    )
