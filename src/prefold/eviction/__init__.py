"""Eviction: which idle blocks go first when room is needed.

| module | holds |
|---|---|
| ``policy`` | the protocol: a score for the facts of an idle leaf |
| ``lru`` | least recently used first |
| ``queue`` | idle leaves in order of score |
| ``registry`` | policies by name |
"""
