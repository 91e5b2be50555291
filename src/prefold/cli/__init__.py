"""Command line: the ``prefold`` program.

| module | holds |
|---|---|
| ``main`` | the outermost shell: exit codes, Ctrl-C, closed pipes |
| ``app`` | the commands and their options; imports no torch |
| ``options`` | what the options say, as values |
| ``lazy`` | loads a command's work when it is run |
| ``quiet`` | keeps other libraries off the screen |
| ``console`` | what is written where: results, steps and their progress |
| ``opening`` | a model and its engine, opened and closed again |
| ``chat`` | prompts as text and as tokens |
| ``generate`` | the command of that name |
| ``demo`` and ``demo_*`` | the tour |
"""
