"""Blocks: the physical pieces of KV memory, as numbers.

| module | holds |
|---|---|
| ``layout`` | shape and bytes of a block |
| ``pool`` | free list, states and counts of all blocks |
| ``table`` | one sequence's positions -> blocks -> slots, and copies between blocks |
"""
