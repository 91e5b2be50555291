"""Adapter configuration: what PEFT's ``adapter_config.json`` says about a LoRA adapter.

Read with the rules of PEFT and refused by a sentence where it asks for more than low-rank
products beside linear layers: what is not understood could change what is computed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prefold.engine.adapter_patterns import compile_pattern
from prefold.errors import ConfigError

CONFIG_NAME = "adapter_config.json"

ALL_LINEAR = "all-linear"

_MAX_BYTES = 2**20
_MAX_RANK = 4096
_MAX_INVOCATION_TOKENS = 1024

#: Settings of a value that is not empty which cannot be served, and why.
_REFUSED: Mapping[str, str] = {
    "use_dora": "it is a DoRA adapter, which rescales the model's own weights",
    "modules_to_save": "it replaces whole modules of the model (modules_to_save)",
    "lora_bias": "its low-rank layers have biases (lora_bias)",
    "use_qalora": "it is a QALoRA adapter",
    "use_bdlora": "its matrices are block-diagonal (use_bdlora)",
    "layer_replication": "it repeats layers of the model (layer_replication)",
    "trainable_token_indices": "it replaces embeddings of tokens",
    "target_parameters": "it adapts parameters that are no linear layers",
    "megatron_config": "it is made for Megatron's layers",
    "arrow_config": "it chooses among several adapters (arrow_config)",
}

#: Read below, or without any effect on what a loaded adapter computes.
_KNOWN = frozenset(
    {
        *_REFUSED,
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "bias",
        "peft_type",
        "alora_invocation_tokens",
        "init_lora_weights",
        "fan_in_fan_out",  # how a base layer keeps its weights, which the layer knows
        "task_type",
        "peft_version",
        "auto_mapping",
        "base_model_name_or_path",  # a name proves nothing; shapes are compared
        "revision",
        "inference_mode",
        "lora_dropout",  # of training
        "runtime_config",
        "loftq_config",  # of the first weights, as are the next ones
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "megatron_core",
        "qalora_group_size",  # of ``use_qalora``
        "ensure_weight_tying",
    }
)

#: First weights that are chosen without changing the model's own.
_PLAIN_STARTS: tuple[object, ...] = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """The settings of a LoRA adapter.

    Attributes:
        rank: Of its matrices, where no pattern says otherwise.
        alpha: Its products are scaled by alpha / rank, or alpha / sqrt(rank).
        uses_rslora: Whether it is the root.
        ranks: Ranks of the modules that a pattern matches; the first that does counts.
        alphas: The same for alpha.
        targets: A pattern that all of a module's name matches, names or ends of names,
            or ``"all-linear"``.
        excluded: As ``targets``; no module of these is adapted.
        layers: Numbers of the layers with adapted modules; None for all.
        layer_lists: What the list of layers may be called; none for anything.
        invocation: Token ids from whose last occurrence in a prompt on the adapter acts;
            None where it acts everywhere.
    """

    rank: int
    alpha: float
    uses_rslora: bool
    ranks: tuple[tuple[re.Pattern[str], int], ...]
    alphas: tuple[tuple[re.Pattern[str], float], ...]
    targets: re.Pattern[str] | frozenset[str] | str
    excluded: re.Pattern[str] | frozenset[str]
    layers: frozenset[int] | None
    layer_lists: tuple[re.Pattern[str], ...]
    invocation: tuple[int, ...] | None

    def adapts(self, module: str) -> bool:
        """Tell whether a linear layer of that name has an adapter."""
        if _matches(self.excluded, module):
            return False
        if self.targets == ALL_LINEAR:
            # Without its layers: PEFT lists the names, and exact names are taken as such.
            return True
        if isinstance(self.targets, re.Pattern):
            return self.targets.fullmatch(module) is not None
        if module in self.targets:
            return True
        return _matches(self.targets, module) and self._is_in_layer(module)

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's matrices."""
        return next((r for pattern, r in self.ranks if pattern.match(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return what a module's low-rank product is multiplied by."""
        alpha = next((a for pattern, a in self.alphas if pattern.match(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.uses_rslora else rank)

    def _is_in_layer(self, module: str) -> bool:
        if self.layers is None:
            return True
        found = (pattern.match(module) for pattern in self.layer_lists)
        number = next((each[1] for each in found if each is not None), None)
        return number is not None and int(number) in self.layers


def read_adapter_config(directory: Path) -> AdapterConfig:
    """Read the configuration in an adapter's directory.

    Raises:
        ConfigError: It is missing, or asks for what cannot be served; one sentence.
    """
    entries = _read_json(directory / CONFIG_NAME)
    try:
        return parse_adapter_config(entries)
    except ConfigError as error:
        raise ConfigError(f"{CONFIG_NAME} cannot be used: {error}") from error


def parse_adapter_config(entries: Mapping[str, object]) -> AdapterConfig:
    """Return what a configuration means.

    Raises:
        ConfigError: It asks for what cannot be served.
    """
    _check_kind(entries)
    layers = entries.get("layers_to_transform")
    lists = entries.get("layers_pattern") or []
    names = [lists] if isinstance(lists, str) else _texts("layers_pattern", lists)
    heads = [rf".*\.{name}" for name in names] or [r".*\.[^.]*"]
    return AdapterConfig(
        rank=_rank("r", entries.get("r", 8)),
        alpha=_number("lora_alpha", entries.get("lora_alpha", 8)),
        uses_rslora=_flag("use_rslora", entries.get("use_rslora", False)),
        ranks=tuple(
            (_end_pattern("rank_pattern", name), _rank("rank_pattern", value))
            for name, value in _table("rank_pattern", entries).items()
        ),
        alphas=tuple(
            (_end_pattern("alpha_pattern", name), _number("alpha_pattern", value))
            for name, value in _table("alpha_pattern", entries).items()
        ),
        targets=_targets(entries.get("target_modules")),
        excluded=_names_or_pattern("exclude_modules", entries.get("exclude_modules") or []),
        layers=_layers(layers),
        layer_lists=tuple(
            compile_pattern("layers_pattern", rf"{head}\.(\d+)\.") for head in heads
        ),
        invocation=_invocation(entries.get("alora_invocation_tokens")),
    )


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path.parent} has no {CONFIG_NAME}; give the directory of an adapter that "
            "PEFT has saved"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON; save the adapter again") from error
    if not isinstance(entries, dict):
        raise ConfigError(f"{path} must hold one JSON object")
    return entries


def _check_kind(entries: Mapping[str, object]) -> None:
    """Refuse whatever is no plain LoRA."""
    if entries.get("peft_type") != "LORA":
        raise ConfigError(
            f"only adapters of peft_type LORA are served, got {entries.get('peft_type')!r}"
        )
    for name, reason in _REFUSED.items():
        if entries.get(name):
            raise ConfigError(f"{reason}; merge it into the model instead")
    if entries.get("bias", "none") != "none":
        raise ConfigError(
            "it trained biases of the model (bias); train it with bias='none', or merge it "
            "into the model"
        )
    start = entries.get("init_lora_weights", True)
    # Of the same type: 1 is True to Python.
    if not any(
        start is each or (isinstance(start, str) and start == each)
        for each in _PLAIN_STARTS
    ):
        raise ConfigError(
            "its first weights changed the model's own (init_lora_weights); convert it to "
            "a plain LoRA when saving it, as PEFT does with "
            "path_initial_model_for_weight_conversion"
        )
    unknown = sorted(
        name for name, value in entries.items() if value and name not in _KNOWN
    )
    if unknown:
        raise ConfigError(
            f"nobody here knows the setting {unknown[0][:60]!r}, which may change what it "
            "computes; remove it if it does not"
        )


def _targets(value: object) -> re.Pattern[str] | frozenset[str] | str:
    if isinstance(value, str) and value.lower() == ALL_LINEAR:
        return ALL_LINEAR
    if value is None or value == []:
        raise ConfigError("it names no target_modules")
    return _names_or_pattern("target_modules", value)


def _names_or_pattern(name: str, value: object) -> re.Pattern[str] | frozenset[str]:
    if isinstance(value, str):
        return compile_pattern(name, value)
    return frozenset(_texts(name, value))


def _matches(wanted: re.Pattern[str] | frozenset[str] | str, module: str) -> bool:
    if isinstance(wanted, re.Pattern):
        return wanted.fullmatch(module) is not None
    return any(module == each or module.endswith(f".{each}") for each in wanted)


def _end_pattern(name: str, key: str) -> re.Pattern[str]:
    return compile_pattern(name, rf"(.*\.)?({key})$")


def _layers(value: object) -> frozenset[int] | None:
    if value is None or value == []:
        return None
    numbers = value if isinstance(value, list) else [value]
    if not all(_is_whole(number) for number in numbers):
        raise ConfigError("layers_to_transform must be a number of a layer, or a list")
    return frozenset(numbers)


def _invocation(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= _MAX_INVOCATION_TOKENS
        or not all(_is_whole(each) and each >= 0 for each in value)
    ):
        raise ConfigError(
            f"alora_invocation_tokens must be a list of 1 to {_MAX_INVOCATION_TOKENS} "
            "token ids"
        )
    return tuple(value)


def _table(name: str, entries: Mapping[str, object]) -> Mapping[str, object]:
    value = entries.get(name) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be an object of patterns and numbers")
    return value


def _texts(name: str, value: object) -> list[str]:
    texts = (
        [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    )
    if not isinstance(value, list) or len(texts) < len(value) or not all(texts):
        raise ConfigError(f"{name} must be a text or a list of texts")
    return texts


def _rank(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_RANK:
        raise ConfigError(f"{name} must be a whole number of 1 to {_MAX_RANK}")
    return value


def _number(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, int | float) or not is_number or not abs(value) < 2**64:
        raise ConfigError(f"{name} must be a number")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false")
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
