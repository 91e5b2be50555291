"""Command line: the ``prefold`` program.

| module | holds |
|---|---|
| ``main`` | the outermost shell: exit codes, Ctrl-C, closed pipes |
| ``app`` | the commands and their options; imports no torch |
| ``arguments`` | options that several commands have |
| ``options``, ``*_options`` | what the options say, as values |
| ``spread`` | makes a value's fields options of a command |
| ``lazy`` | loads a command's work when it is run |
| ``quiet`` | keeps other libraries off the screen |
| ``console`` | what is written where: results, steps and their progress |
| ``opening`` | a model and its engine, opened and closed again |
| ``chat`` | prompts as text and as tokens |
| ``generate`` | the command of that name |
| ``keys``, ``keys_app`` | API keys of tenants; import no torch either |
| ``admin`` and ``admin_*`` | a client of a running server's admin plane; no torch |
| ``adapters_app`` | the same, for its LoRA adapters |
| ``misses_app``, ``miss_tables`` | the same, for why requests missed |
| ``runs_app`` | the same, for single runs and their pins |
| ``durations`` | durations as they are typed |
| ``demo`` and ``demo_*`` | the tour |
| ``serve``, ``serve_app`` | the server: its configuration, and what is said of it |
| ``replay`` and ``replay_*`` | eviction policies on a recorded trace; import no torch |
| ``advise``, ``advise_*``, ``tokenizers`` | whether a cache pays for recorded traffic |
| ``bench`` and ``bench_*`` | a load on any server, and its times; import no torch |
"""
