"""Advisor: what more a prefix cache could reuse, and what to change for it.

| module | answers |
|---|---|
| ``breakpoints`` | which part of a prompt ended the prefix it shares with an earlier one |
| ``break_kind``, ``places`` | what can, and how two texts are compared at one place |
| ``time_values``, ``id_values`` | clocks, dates, ids and counters that differ |
| ``text_changes`` | white space, templates and reasoning that differ |
| ``json_order``, ``line_order`` | what only stands in another order |
| ``replay`` | what an eviction policy would have hit on a recorded trace |
| ``clairvoyant`` | what the best of all policies would have |
| ``miss_curve``, ``what_if`` | what caches of other sizes would hit and save, live |
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
from prefold.advisor.break_kind import BreakKind
from prefold.advisor.breakpoints import (
    Breakpoint,
    Tokenize,
    TokenSpan,
    explain_difference,
    find_breakpoint,
)
from prefold.advisor.clairvoyant import CLAIRVOYANT, replay_clairvoyant
from prefold.advisor.miss_curve import CurvePoint, MissCurve
from prefold.advisor.path_marks import path_marks
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
from prefold.advisor.what_if import WhatIf, WhatIfMeter, WhatIfPoint

__all__ = [
    "CLAIRVOYANT",
    "BlockTree",
    "BreakKind",
    "Breakpoint",
    "CurvePoint",
    "MissCurve",
    "ReplayResult",
    "TokenSpan",
    "Tokenize",
    "Trace",
    "TraceFormat",
    "TraceOptions",
    "TraceProblem",
    "TraceReading",
    "TraceRequest",
    "WhatIf",
    "WhatIfMeter",
    "WhatIfPoint",
    "agent_trace",
    "chat_trace",
    "explain_difference",
    "few_shot_trace",
    "find_breakpoint",
    "grow_block_tree",
    "merge_blocks",
    "path_marks",
    "read_trace",
    "replay",
    "replay_clairvoyant",
]
