"""Errors: the whole tree of exceptions that cross a package boundary.

::

    PrefoldError
    ├── InvalidInputError (ValueError)   can never work
    │   ├── ConfigError                  a value or a combination, at start
    │   │   ├── IncompatibleModelError   a model that cannot replace the running one
    │   │   └── NameInUseError           a name that means something else already
    │   └── RequestError                 one request: too long, bad sampling
    │       └── UnknownAdapterError      an adapter that is not loaded
    ├── CapacityError                    may work later
    │   ├── OutOfBlocksError             needed and available counts attached
    │   └── QueueFullError               the admission queue is full
    ├── UnusableStepError                a step's KV of some sequences is not numbers
    └── StateError (RuntimeError)        the object's state forbids the call
        ├── LeaseReleasedError
        ├── ModelChangedError            a prompt was read for a model that is gone
        ├── SwapUnderWayError
        └── EngineStoppedError

    InvariantError (AssertionError)      a bug in Prefold itself

Messages give the value and the limit and say what to change. Token ids, prompt
text, salts and keys never enter one.
"""

from __future__ import annotations


class PrefoldError(Exception):
    """Anything Prefold raises on purpose."""


class InvalidInputError(PrefoldError, ValueError):
    """The input can never work, whatever the system's state."""


class ConfigError(InvalidInputError):
    """A setting, or a combination of settings, model and machine, cannot be used."""


class IncompatibleModelError(ConfigError):
    """A model cannot take the place of the one that runs; it needs a restart."""


class NameInUseError(ConfigError):
    """Something else has this name already."""


class RequestError(InvalidInputError):
    """One request cannot be served: too long, empty, or with senseless parameters."""


class UnknownAdapterError(RequestError):
    """No adapter of this name is loaded."""


class CapacityError(PrefoldError):
    """There is no room now; the same call may work later."""


class OutOfBlocksError(CapacityError):
    """The pool cannot give the blocks asked for.

    Attributes:
        num_needed: Blocks the call needed.
        num_available: Blocks it could have had: free ones and evictable idle ones.
    """

    def __init__(self, num_needed: int, num_available: int) -> None:
        super().__init__(f"{num_needed} blocks needed, {num_available} available")
        self.num_needed = num_needed
        self.num_available = num_available


class QueueFullError(CapacityError):
    """The admission queue holds as many requests as it may."""


class UnusableStepError(PrefoldError):
    """A step gave some of its sequences KV that is not numbers; it must not be kept.

    Attributes:
        indices: Of those sequences, in the order of the step.
    """

    def __init__(self, indices: tuple[int, ...]) -> None:
        super().__init__(f"the KV of {len(indices)} sequences of a step is not numbers")
        self.indices = indices


class StateError(PrefoldError, RuntimeError):
    """The object is in a state that forbids the call."""


class LeaseReleasedError(StateError):
    """A lease was used after its release."""


class ModelChangedError(StateError):
    """A prompt was read for a model that is not the one that is served any more."""


class SwapUnderWayError(StateError):
    """The model is being replaced already."""


class EngineStoppedError(StateError):
    """The engine has stopped and takes no more requests."""


class EngineBrokenError(EngineStoppedError):
    """A bug has stopped the engine; only a new one will take requests."""


class InvariantError(AssertionError):
    """An internal rule is broken: a bug here, never the caller's doing.

    Deliberately no ``PrefoldError``, so that handling the library's errors cannot
    hide its bugs.
    """
