"""Prefix tree: which token runs are cached, and in which blocks.

| module | holds |
|---|---|
| ``node`` | one run of whole blocks, and the audience that may read it |
| ``walk`` | the longest readable path through the tree for a prompt |
| ``inner`` | children that agree only in part of a block |
| ``tombstones`` | what was evicted below a node, for explanations |
| ``dead`` | invalidated subtrees waiting to be freed |
| ``prefix_tree`` | publish, split, merge, trim, pin and unpin |
| ``invariants`` | the check of all of it |
"""
