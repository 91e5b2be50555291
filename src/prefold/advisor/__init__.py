"""Advisor: what more a prefix cache could reuse, and what to change for it.

| module | answers |
|---|---|
| ``breakpoints`` | which part of a prompt ended the prefix it shares with an earlier one |
| ``replay`` | what an eviction policy would have hit on a recorded trace |
| ``clairvoyant`` | what the best of all policies would have |
| ``lru_replay``, ``run_tree`` | the same for LRU and millions of requests, run by run |
| ``worth``, ``verdict`` | whether what is saved is worth what is held, and why |
| ``fair_split`` | what each user owes for memory that several use |
| ``appraisal``, ``advice`` | all that is said of one trace |
| ``lint``, ``prompt_*``, ``rewriting`` | what breaks logged prompts, what that costs |
| ``report``, ``plots``, ``words``, ``advice_document`` | the same as a page, as JSON |
| ``traffic`` | a trace or a log, and what of it was used |
| ``trace_reader`` | what a trace file says, in any of several formats |
| ``trace_generator`` | what to replay where nothing was recorded |

Texts and token positions come from the caller; nothing here tokenises or computes.
"""

from prefold.advisor.block_tree import BlockTree, grow_block_tree
from prefold.advisor.breakpoints import (
    BreakKind,
    Breakpoint,
    Tokenize,
    TokenSpan,
    explain_difference,
    find_breakpoint,
)
from prefold.advisor.clairvoyant import CLAIRVOYANT, replay_clairvoyant
from prefold.advisor.replay import replay
from prefold.advisor.replay_result import ReplayResult
from prefold.advisor.trace import Trace, TraceRequest
from prefold.advisor.trace_formats import TraceFormat
from prefold.advisor.trace_generator import (
    agent_trace,
    chat_trace,
    few_shot_trace,
)
from prefold.advisor.trace_lines import TraceProblem
from prefold.advisor.trace_merging import merge_blocks
from prefold.advisor.trace_reader import TraceOptions, TraceReading, read_trace

__all__ = [
    "CLAIRVOYANT",
    "BlockTree",
    "BreakKind",
    "Breakpoint",
    "ReplayResult",
    "TokenSpan",
    "Tokenize",
    "Trace",
    "TraceFormat",
    "TraceOptions",
    "TraceProblem",
    "TraceReading",
    "TraceRequest",
    "agent_trace",
    "chat_trace",
    "explain_difference",
    "few_shot_trace",
    "find_breakpoint",
    "grow_block_tree",
    "merge_blocks",
    "read_trace",
    "replay",
    "replay_clairvoyant",
]
