"""Arguments: types of what people hand to an engine, checked before anything is done.

A wrong one is a sentence that names what is needed; it never repeats a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prefold.engine.config import RequestOptions
from prefold.engine.request import SamplingParams
from prefold.errors import RequestError


def check_types(params: object, options: object) -> None:
    """Refuse what is neither sampling parameters nor options.

    Raises:
        RequestError: Naming the type that is needed.
    """
    if not isinstance(params, SamplingParams):
        raise RequestError(f"params must be SamplingParams, got {_a(params)}")
    check_options(options)


def check_options(options: object) -> None:
    """Refuse what are no options.

    Raises:
        RequestError: Naming the type that is needed.
    """
    if not isinstance(options, RequestOptions):
        raise RequestError(f"options must be RequestOptions, got {_a(options)}")


def check_prompts(name: str, prompts: object) -> None:
    """Refuse what is no list of prompts, such as one prompt.

    Args:
        name: Of the method that was called.
        prompts: Of any type; each of them is checked later.

    Raises:
        RequestError: It is none.
    """
    if isinstance(prompts, str):
        raise RequestError(f"{name} takes a list of prompts; put the text in a list")
    is_array = isinstance(prompts, np.ndarray) and prompts.ndim > 0
    if not is_array and not isinstance(prompts, Sequence):
        raise RequestError(f"{name} takes a list of prompts, got {_a(prompts)}")


def params_of_each(params: object, num_prompts: int) -> Sequence[SamplingParams]:
    """Return the sampling parameters of each prompt.

    Args:
        params: For all prompts, or a list with one for each.
        num_prompts: Of the same call.

    Raises:
        RequestError: They are neither, or there are as many as prompts not.
    """
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if isinstance(params, str) or not isinstance(params, Sequence):
        raise RequestError(
            f"params must be SamplingParams or a list of them, got {_a(params)}"
        )
    if len(params) != num_prompts:
        raise RequestError(
            f"there are {num_prompts} prompts but {len(params)} sampling parameters"
        )
    return params


def check_request_id(request_id: object) -> None:
    """Refuse what can be no request's id.

    Raises:
        RequestError: It is none.
    """
    if not isinstance(request_id, str):
        raise RequestError(
            f"a request id is a text that submit returned, got {_a(request_id)}"
        )


def check_num_forks(num_forks: object) -> None:
    """Refuse what is no number of forks.

    Raises:
        RequestError: It is no whole number, or below one.
    """
    # A bool is an int to Python, and never meant as one here.
    if isinstance(num_forks, bool) or not isinstance(num_forks, int):
        raise RequestError(f"num_forks must be a whole number, got {_a(num_forks)}")
    if num_forks < 1:
        raise RequestError(f"num_forks must be at least 1, got {num_forks}")


def _a(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"
