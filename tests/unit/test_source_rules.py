"""Rules for the source as text that no linter checks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import run_python

SRC = Path(__file__).parents[2] / "src" / "prefold"
MODULES = sorted(SRC.rglob("*.py"))
CONTROL_HALF = ("identity", "blocks", "tree", "eviction", "cache")

#: Modules that run code when they read data.
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "dbm"}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}


def _name(path: Path) -> str:
    return str(path.relative_to(SRC))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_modules_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_nothing_runs_code_that_it_reads(path: Path) -> None:
    assert list(_unsafe_uses(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import torch, pickle as p",
        "from pickle import loads",
        "import importlib; importlib.import_module('marshal')",
        "eval('1')",
        "exec(source)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_the_rule_finds_what_it_forbids(source: str) -> None:
    assert list(_unsafe_uses(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "re.compile('a')",
        "torch.load(path, weights_only=True)",
        "json.load(file)",
    ],
)
def test_the_rule_leaves_alone_what_is_safe(source: str) -> None:
    assert list(_unsafe_uses(source)) == []


def _unsafe_uses(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name.split(".")[0] in UNSAFE_MODULES)
            case ast.ImportFrom(module=str(module)) if (
                module.split(".")[0] in UNSAFE_MODULES
            ):
                yield module
            case ast.Constant(value=str(text)) if text in UNSAFE_MODULES:
                yield text  # as an argument of import_module
            case ast.Call(func=ast.Name(id=name)) if name in UNSAFE_BUILTINS:
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                if not _has_keyword(node, "weights_only", value=True):
                    yield "torch.load"
            case ast.keyword(arg="allow_pickle", value=value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield "allow_pickle"


def _has_keyword(call: ast.Call, name: str, *, value: bool) -> bool:
    return any(
        keyword.arg == name
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is value
        for keyword in call.keywords
    )


_IMPORT_ALL = """
import importlib, pkgutil, sys

blocked = ["torch", "transformers", "safetensors", "typer", "rich", "fastapi", "starlette"]
sys.modules.update(dict.fromkeys(blocked))  # None makes an import of the name fail
package = importlib.import_module(sys.argv[1])
path = getattr(package, "__path__", [])
for module in pkgutil.walk_packages(path, package.__name__ + "."):
    importlib.import_module(module.name)
assert all(sys.modules[name] is None for name in blocked)
"""


@pytest.mark.parametrize(
    "package",
    ["errors", *(name for name in CONTROL_HALF if list(SRC.glob(f"{name}/*.py")))],
)
def test_the_control_half_imports_without_torch(package: str) -> None:
    run_python(_IMPORT_ALL, f"prefold.{package}")


def test_the_top_level_package_imports_without_torch() -> None:
    run_python("import sys; sys.modules['torch'] = None; import prefold")
