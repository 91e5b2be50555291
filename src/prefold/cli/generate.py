"""Generate: one prompt in, text and cache facts out."""

from __future__ import annotations

from prefold.cli.chat import Message, PromptWriter, WrittenPrompt
from prefold.cli.console import Screen, format_seconds
from prefold.cli.opening import Session, open_session
from prefold.cli.options import GenerateOptions
from prefold.engine.request import RequestOutput, SamplingParams
from prefold.errors import CapacityError, RequestError


def run_generate(options: GenerateOptions) -> int:
    """Ask the prompt as often as wanted; return 0.

    Raises:
        RequestError: The prompt or a sampling value cannot be served.
        ConfigError: The model cannot be used.
        CapacityError: A step failed.
    """
    # Before the model is loaded: a mistake is answered at once.
    params = _params(options)
    if not options.prompt:
        raise RequestError("the prompt is empty; it needs at least one character")
    with (
        Screen(as_json=options.as_json) as screen,
        open_session(options.model, screen) as session,
    ):
        writer = PromptWriter(session.tokenizer, chat=options.chat)
        prompt = writer.write(_messages(options))
        for line in session.facts.lines():
            screen.say(line)
        outputs = []
        for turn in range(options.repeat):
            screen.say()
            if options.repeat > 1:
                screen.say(f"Request {turn + 1} of {options.repeat}", style="bold")
            outputs.append(_stream(session, prompt, params, screen))
            for line in _facts(outputs[-1]):
                screen.say(line)
        if options.as_json:
            screen.print_json(
                {
                    "loaded": session.facts.to_json(),
                    "requests": [_to_json(output) for output in outputs],
                }
            )
    return 0


def _params(options: GenerateOptions) -> SamplingParams:
    sampling = options.sampling
    if sampling.max_tokens == 0:
        raise RequestError("max_tokens must be at least 1: with 0 there is no reply")
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
    )


def _messages(options: GenerateOptions) -> list[Message]:
    system = (
        [] if options.system is None else [Message(role="system", content=options.system)]
    )
    return [*system, Message(role="user", content=options.prompt)]


def _stream(
    session: Session, prompt: WrittenPrompt, params: SamplingParams, screen: Screen
) -> RequestOutput:
    """Write the reply as it comes; return the finished request."""
    engine = session.engine
    request_id = engine.submit(prompt.token_ids, params)
    screen.begin(f"Reading {len(prompt.token_ids):,} tokens")
    ended: list[RequestOutput] = []
    try:
        while not ended:
            ended = [output for output in engine.step() if output.request_id == request_id]
            for token in engine.take_new_tokens():
                screen.write(token.text)
    finally:
        # Also where it is interrupted: what is said next begins a line.
        screen.write("\n")
    [output] = ended
    if output.error is not None:
        raise CapacityError(output.error)
    return output


def _facts(output: RequestOutput) -> list[str]:
    usage, timing, miss = output.usage, output.timing, output.miss_reason
    reason = "" if miss is None else f": {miss.describe()}"
    first = (
        ""
        if timing.ttft_s is None
        else f", the first after {format_seconds(timing.ttft_s)}"
    )
    each = "" if timing.tpot_s is None else f", then {format_seconds(timing.tpot_s)} each"
    times = f"{first}{each} ({output.finish_reason.value})"
    return [
        f"Prompt: {usage.prompt_tokens:,} tokens, {usage.cached_tokens:,} hit{reason}.",
        f"Reply: {usage.completion_tokens:,} tokens{times}.",
    ]


def _to_json(output: RequestOutput) -> dict[str, object]:
    usage, timing, miss = output.usage, output.timing, output.miss_reason
    return {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "prompt_tokens": usage.prompt_tokens,
        "hit_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "finish_reason": output.finish_reason.value,
        "miss": None
        if miss is None
        else {
            "kind": miss.kind.value,
            "at_token": miss.at_token,
            "sentence": miss.describe(),
        },
        "ttft_s": timing.ttft_s,
        "tpot_s": timing.tpot_s,
        "total_s": timing.total_s,
    }
