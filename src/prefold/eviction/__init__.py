"""Eviction: which idle blocks go first when room is needed.

| module | holds |
|---|---|
| ``policy`` | the protocol: where an idle leaf stands, and what there is to learn |
| ``value`` | what saves least prefill time for its room goes first |
| ``survival`` | how likely blocks are to be used again, learned |
| ``cost`` | what prefill takes, measured |
| ``lru``, ``lfu`` | least recently, or least frequently, used first |
| ``registry`` | policies by name |
| ``queue``, ``rack`` | idle leaves in the order in which they go |
| ``quota`` | whose idle blocks may be taken for whom |
"""
