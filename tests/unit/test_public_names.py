from __future__ import annotations

import ast
from pathlib import Path

import pytest

import prefold
from support.processes import run_python

NAMES = [
    "NO_CACHE",
    "READ_WRITE",
    "Access",
    "Approval",
    "ApprovalId",
    "ApprovalTerms",
    "ByAge",
    "ByApproved",
    "ByDomain",
    "ByField",
    "ByFingerprint",
    "ByPrefix",
    "Domain",
    "Engine",
    "Everything",
    "FinishReason",
    "ImagePrompt",
    "Lookup",
    "MissKind",
    "MissReason",
    "NewToken",
    "PrefoldError",
    "PromptEmbeds",
    "Receipt",
    "RequestId",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "Timing",
    "Usage",
]


def test_the_public_names_are_these() -> None:
    assert prefold.__all__ == NAMES
    assert set(NAMES) <= set(dir(prefold))


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_can_be_had(name: str) -> None:
    value = getattr(prefold, name)
    assert getattr(prefold, name) is value


def test_the_types_know_the_same_names() -> None:
    stub = Path(prefold.__file__).with_suffix(".pyi")
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    imported = {
        alias.asname
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    [listed] = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert imported == set(NAMES)
    assert ast.literal_eval(listed) == NAMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        prefold.Motor  # type: ignore[attr-defined]  # noqa: B018


def test_names_without_torch_need_no_torch() -> None:
    run_python(
        "import sys; sys.modules['torch'] = None\n"
        "from prefold import Access, Domain, MissReason, PrefoldError"
    )
