"""Prefix tree: which token runs are cached, and in which blocks.

| module | holds |
|---|---|
| ``node`` | one run of whole blocks, and the audience that may read it |
| ``mark`` | the approval that lets others read a run |
| ``walk`` | the longest readable path through the tree for a prompt |
| ``inner`` | children that agree only in part of a block |
| ``loss``, ``tombstones`` | what was lost below a node, for explanations |
| ``graves`` | what an epoch took, for the same |
| ``dead`` | invalidated subtrees waiting to be freed |
| ``age_cursor`` | how far the search for what became too old has got |
| ``path`` | what lies between a node and the root |
| ``shape`` | split and merge |
| ``audiences`` | which epochs and ages live |
| ``retention``, ``keeping``, ``expiry`` | how long, and how dearly, a node is kept |
| ``account`` | whose idle blocks are counted together |
| ``holding`` | an account's blocks, summed over time, and who owes them |
| ``cohort``, ``lost`` | how blocks were used last, what is remembered of evicted ones |
| ``trimming`` | what eviction takes from a leaf |
| ``prefix_tree`` | publish, split, merge, trim, pin and unpin |
| ``invalidation`` | what makes nodes dead, other than eviction |
| ``invariants`` | the check of all of it |
"""
