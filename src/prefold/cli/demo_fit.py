"""Fitting: texts of an exact number of tokens.

How many tokens a text has is known only to a tokenizer, and words can merge where two
texts meet. So the whole rendered prompt is measured each time, and the text is
lengthened by sentences, then words, then fillers until the count is right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

#: Short pieces that are one token, or two or three, in common vocabularies.
_FILLERS = (" and", " so", " on", ".", " a", "s", "!", " 1", "1", "\n", " It", "-", " of")
_MAX_FILLERS = 64
_MAX_DROPPED_WORDS = 6

Measure = Callable[[str], int]


def fit_text(
    measure: Measure, sentences: Sequence[str], target: int, *, separator: str = " "
) -> str:
    """Return the beginning of a text for which ``measure`` returns ``target``.

    Where no text has exactly so many tokens it is the longest found that has fewer.
    ``measure`` is called some thirty times, and must not fall as a text grows by words.
    """

    def joined(count: int) -> str:
        return separator.join(sentences[:count])

    num_sentences = _largest(len(sentences), lambda count: measure(joined(count)), target)
    text = joined(num_sentences)
    if num_sentences < len(sentences):
        glue = separator if text else ""
        words = _split_words(glue + sentences[num_sentences])
        text = fit_words(measure, text, words, target)
    return _fill(measure, text, target)


def fit_words(measure: Measure, text: str, words: Sequence[str], target: int) -> str:
    """Add as many of ``words``, in order, as fit."""

    def longer(count: int) -> str:
        return text + "".join(words[:count])

    return longer(_largest(len(words), lambda count: measure(longer(count)), target))


def _largest(limit: int, size: Callable[[int], int], target: int) -> int:
    """Return the largest count up to ``limit`` whose size is at most ``target``."""
    return max(bisect_right(range(limit + 1), target, key=size) - 1, 0)


def _fill(measure: Measure, text: str, target: int) -> str:
    """Make up what is missing; take words away again if that is what it needs."""
    best, best_size = text, measure(text)
    for num_dropped in range(_MAX_DROPPED_WORDS + 1):
        base = "".join(_split_words(text)[: -num_dropped or None])
        for turn in range(len(_FILLERS)):
            if best_size == target:
                return best
            fillers = (*_FILLERS[turn:], *_FILLERS[:turn])
            filled, size = _fill_greedily(measure, base, fillers, target)
            if best_size < size <= target or best_size > target:
                best, best_size = filled, size
    return best


def _fill_greedily(
    measure: Measure, text: str, fillers: Iterable[str], target: int
) -> tuple[str, int]:
    size = measure(text)
    fillers = tuple(fillers)
    for _ in range(_MAX_FILLERS):
        if size >= target:
            break
        for filler in fillers:
            longer = measure(text + filler)
            if size < longer <= target:
                text, size = text + filler, longer
                break
        else:
            break
    return text, size


def _split_words(text: str) -> list[str]:
    """Cut before every run of white space, so that the pieces join to the text."""
    words: list[str] = []
    for letter, previous in zip(text, " " + text, strict=False):
        if not words or (letter.isspace() and not previous.isspace()):
            words.append(letter)
        else:
            words[-1] += letter
    return words


def common_length(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Count the leading tokens that agree."""
    length = 0
    for our, their in zip(ours, theirs, strict=False):
        if our != their:
            break
        length += 1
    return length
