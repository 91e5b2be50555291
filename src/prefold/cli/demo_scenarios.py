"""Scenarios of the tour: which prompts each row asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prefold.advisor import explain_difference
from prefold.cli import demo_texts as texts
from prefold.cli.chat import Message, PromptWriter, WrittenPrompt
from prefold.cli.demo_fit import common_length, fit_text, fit_words
from prefold.cli.demo_row import Row, RowTaker
from prefold.cli.opening import Session
from prefold.errors import ConfigError

#: Enough for a time per output token; a tour of long replies would be about decoding.
_REPLY_TOKENS = 12
_SHORT_REPLY_TOKENS = 8
_LABEL_TOKENS = 4
_MIN_CONTEXT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long the texts are, in tokens; smaller than usual for a small model."""

    system: int = 1024
    question: int = 32
    document: int = 4096
    examples: int = 512
    broken: int = 320
    rules: int = 192
    limit: int

    @classmethod
    def that_fit(cls, session: Session) -> Sizes:
        """Return sizes that the model's context and the cache have room for.

        Raises:
            ConfigError: There is room for no tour at all.
        """
        facts = session.facts
        capacity = facts.num_blocks * facts.block_size
        limit = min(facts.max_model_len, capacity) - _REPLY_TOKENS - 1
        if limit < _MIN_CONTEXT:
            raise ConfigError(
                f"the tour needs prompts of {_MIN_CONTEXT} tokens; the model takes "
                f"{facts.max_model_len} and the cache holds {capacity}"
            )
        room = limit - 64
        return cls(
            system=min(1024, room),
            document=min(4096, room),
            examples=min(512, room),
            broken=min(320, room),
            rules=min(192, limit // 8),
            limit=limit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A row that can be taken.

    Attributes:
        num_runs: Requests that it takes.
    """

    title: str
    num_runs: int
    take: Callable[[], Row]


class Tour:
    """The rows, each run when it is taken.

    Args:
        session: What they run on.
        on_run: Told how many requests of a row are done.
    """

    def __init__(self, session: Session, *, on_run: Callable[[int], None]) -> None:
        self._session = session
        self._on_run = on_run
        self._writer = PromptWriter(session.tokenizer)
        self._sizes = Sizes.that_fit(session)

    def steps(self) -> Iterator[Step]:
        """Yield the rows in their order."""
        sizes = self._sizes
        yield Step(
            title=f"(a) a system part of {sizes.system:,} tokens",
            num_runs=8 + 2,
            take=self.system_part,
        )
        yield Step(title="(b) a conversation", num_runs=10 + 2, take=self.conversation)
        yield Step(
            title=f"(c) a {sizes.document:,}-token document",
            num_runs=3 + 1,
            take=self.document,
        )
        yield Step(title="(d) few-shot questions", num_runs=16 + 2, take=self.few_shot)
        yield Step(title="(e) a clock in the first line", num_runs=4, take=self.clock)
        yield Step(title="(e) a random id", num_runs=4, take=self.random_id)
        yield Step(title="(e) another template", num_runs=4, take=self.template)

    def _taker(self, key: str, *, max_tokens: int) -> RowTaker:
        return RowTaker(self._session, key, max_tokens=max_tokens, on_run=self._on_run)

    # -- (a) -------------------------------------------------------------------------

    def system_part(self) -> Row:
        """Ask eight questions after one system part."""
        system, prompts = self._questions_after_system()
        taker = self._taker("a", max_tokens=_SHORT_REPLY_TOKENS)
        for prompt in prompts:
            taker.ask(prompt)
        taker.ask_first_again()
        taker.run_cold((4,))
        rest = [len(prompt.token_ids) - system for prompt in prompts]
        hits = [output.usage.cached_tokens for output in taker.outputs]
        # At other block sizes the part may end in a block of which too little agrees.
        rest_of_block = system % self._session.facts.block_size
        if min(hits[1:]) < system - (rest_of_block if rest_of_block < 4 else 0):
            taker.faults.append(f"a prompt hit {min(hits[1:]):,} of the {system:,} tokens")
        notes = [f"The first hit {hits[0]}, the other seven {_span(hits[1:])}."]
        if (system, set(rest)) != (self._sizes.system, {self._sizes.question}):
            notes.append(
                f"With this tokenizer no text was found that has {self._sizes.system:,} + "
                f"{self._sizes.question} tokens exactly."
            )
        return taker.finish(
            f"(a) a system part of {system:,} tokens, eight {_span(rest)}-token questions",
            warm=range(1, 8),
            notes=notes,
        )

    def _questions_after_system(self) -> tuple[int, list[WrittenPrompt]]:
        stems = texts.QUESTIONS

        def shared(system: str) -> int:
            first, second = (self._write(system, f"{stem}?") for stem in stems[:2])
            return common_length(first.token_ids, second.token_ids)

        system = fit_text(shared, texts.handbook(200), self._sizes.system)
        target = shared(system) + self._sizes.question
        prompts = [
            self._write(system, self._fit_question(system, stem, target)) for stem in stems
        ]
        lengths = [
            common_length(prompts[0].token_ids, prompt.token_ids) for prompt in prompts[1:]
        ]
        return min(lengths), prompts

    def _fit_question(self, system: str, stem: str, target: int) -> str:
        def measure(text: str) -> int:
            return len(self._write(system, f"{text}?").token_ids)

        words = fit_words(measure, stem, texts.QUESTION_WORDS, target)
        return f"{fit_text(measure, [words], target, separator='')}?"

    # -- (b) -------------------------------------------------------------------------

    def conversation(self) -> Row:
        """Let a conversation grow; each turn finds the one before it."""
        taker = self._taker("b", max_tokens=_REPLY_TOKENS)
        messages = [Message(role="system", content=self._conversation_rules())]
        known = num_changed = num_missed = 0
        previous: list[int] = []
        for turn in texts.CONVERSATION:
            messages.append(Message(role="user", content=turn))
            prompt = self._writer.write(messages)
            if len(prompt.token_ids) > self._sizes.limit:
                break
            output = taker.ask(prompt, ignore_eos=False)
            if previous:
                # What was known at the end of the last turn, less the token without KV.
                agreed = common_length(prompt.token_ids, previous[:-1])
                known += len(previous)
                num_changed += len(previous) - 1 - agreed
                num_missed += max(agreed - output.usage.cached_tokens, 0)
            previous = [*prompt.token_ids, *output.token_ids]
            messages.append(Message(role="assistant", content=output.text))
        num_turns = len(taker.outputs)
        cold = sorted({max(num_turns * share // 10 - 1, 0) for share in (5, 10)})
        taker.run_cold(cold, ignore_eos=False)
        hits = sum(output.usage.cached_tokens for output in taker.outputs)
        notes = [
            f"Of {known:,} tokens of previous prompts and replies, {hits:,} hit; "
            f"{max(num_turns - 1, 0)} were last sampled tokens (no KV yet), "
            f"{num_changed} changed by re-tokenising replies"
            + (
                f", {num_missed} were not copied (under four of their block)."
                if num_missed
                else "."
            ),
            "Both medians are over the turns that ran both ways.",
        ]
        return taker.finish(
            f"(b) a conversation of {num_turns} turns", warm=cold, notes=notes
        )

    def _conversation_rules(self) -> str:
        """Return a system part that leaves most of the room to the turns."""

        def size(rules: str) -> int:
            return len(self._write(rules, "").token_ids)

        return fit_text(size, texts.handbook(20), self._sizes.rules)

    # -- (c) -------------------------------------------------------------------------

    def document(self) -> Row:
        """Ask three questions about one long document."""
        questions = texts.DOCUMENT_QUESTIONS

        def write(document: str, question: str) -> WrittenPrompt:
            return self._write("Answer from the diary.", f"{document}\n\n{question}")

        def shared(document: str) -> int:
            first, second = (write(document, question) for question in questions[:2])
            return common_length(first.token_ids, second.token_ids)

        text = fit_text(shared, texts.diary(400), self._sizes.document, separator="\n")
        taker = self._taker("c", max_tokens=_SHORT_REPLY_TOKENS)
        for question in questions:
            taker.ask(write(text, question))
        taker.ask_first_again()
        hits = [output.usage.cached_tokens for output in taker.outputs]
        return taker.finish(
            f"(c) a {shared(text):,}-token document asked three times",
            warm=(1, 2),
            notes=[f"The first hit {hits[0]:,}, the others {_span(hits[1:])}."],
        )

    # -- (d) -------------------------------------------------------------------------

    def few_shot(self) -> Row:
        """Ask many short questions after the same worked examples."""
        examples = [
            f"Letter: {text}\nDesk: {desk}\n" for text, desk in texts.letters(0, 64)
        ]
        asked = [f"Letter: {text}\nDesk:" for text, _ in texts.letters(64, 16)]

        def write(shots: str, letter: str) -> WrittenPrompt:
            return self._write(texts.FEW_SHOT_TASK, f"{shots}\n\n{letter}")

        def size(shots: str) -> int:
            return len(write(shots, "").token_ids)

        shots = fit_text(size, examples, self._sizes.examples, separator="\n")
        taker = self._taker("d", max_tokens=_LABEL_TOKENS)
        for letter in asked:
            taker.ask(write(shots, letter))
        taker.ask_first_again()
        taker.run_cold((8,))
        hits = [output.usage.cached_tokens for output in taker.outputs]
        return taker.finish(
            f"(d) {len(asked)} few-shot questions",
            warm=range(1, len(asked)),
            notes=[f"The first hit {hits[0]}, the other fifteen {_span(hits[1:])}."],
        )

    # -- (e) -------------------------------------------------------------------------

    def clock(self) -> Row:
        return self._broken("clock", "a clock in the first line", texts.CLOCK_LINES)

    def random_id(self) -> Row:
        return self._broken("id", "a random id in the first line", texts.RANDOM_ID_LINES)

    def template(self) -> Row:
        return self._broken(
            "template", "another template as first line", texts.TEMPLATE_LINES
        )

    def _broken(self, key: str, what: str, lines: Sequence[str]) -> Row:
        """Ask the same thing after different first lines."""
        question = f"{texts.QUESTIONS[0]}?"

        def size(body: str) -> int:
            return len(self._write(f"{lines[0]}\n{body}", question).token_ids)

        body = fit_text(size, texts.handbook(100), self._sizes.broken)
        taker = self._taker(f"e-{key}", max_tokens=_LABEL_TOKENS)
        findings: list[str] = []
        for line in lines:
            prompt = self._write(f"{line}\n{body}", question)
            if taker.prompts:
                earlier = taker.nearest(prompt)
                finding = explain_difference(
                    earlier.text,
                    prompt.text,
                    at_token=common_length(earlier.token_ids, prompt.token_ids),
                ).describe()
                if finding not in findings:
                    findings.append(finding)
            taker.ask(prompt)
        taker.run_cold((1,))
        return taker.finish(
            f"(e) {what}: {'; '.join(findings)}",
            warm=(1, 2),
            notes=["All that follows is computed again, although it is the same text."],
        )

    def _write(self, system: str, question: str) -> WrittenPrompt:
        return self._writer.write(
            [Message(role="system", content=system), Message(role="user", content=question)]
        )


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
