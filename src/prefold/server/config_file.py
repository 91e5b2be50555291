"""Configuration file: ``prefold.toml`` and the environment, read into one value.

Each section is one class of the configuration; its fields are the names that may stand
there, and their types say what. The environment names what differs between machines, and
wins over the file::

    PREFOLD_CONFIG             the file, where no option names one
    PREFOLD_KEY_FILE           [server] key_file
    PREFOLD_ADMIN_TOKEN_FILE   [server] admin_token_file
    PREFOLD_TENANTS            [[tenants]], as a JSON array of objects
"""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import TypeVar, get_args, get_type_hints

from prefold.engine.config import SchedulerConfig
from prefold.errors import ConfigError
from prefold.server.config import (
    CacheConfig,
    ModelConfig,
    PrefoldConfig,
    ServerConfig,
    TenantConfig,
    nearest,
)
from prefold.server.credentials import ADMIN_TOKEN_FILE_VARIABLE
from prefold.server.images_config import ImagesConfig
from prefold.server.keys import KEY_FILE_VARIABLE

#: Read where neither an option nor the environment names a file, if it is there.
CONFIG_NAME = "prefold.toml"
CONFIG_VARIABLE = "PREFOLD_CONFIG"
TENANTS_VARIABLE = "PREFOLD_TENANTS"

_MAX_BYTES = 2**20
#: Of a whole number, as TOML has it; Python refuses to write much longer ones out.
_MAX_BITS = 63

#: The sections with the classes that describe them, and the names that may stand there.
_CLASS_BY_SECTION: Mapping[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "engine": SchedulerConfig,
    "server": ServerConfig,
    "images": ImagesConfig,
}
_TENANTS = "tenants"
_ADAPTERS = "adapters"

#: Set from elsewhere: the queue is one, and [server] says how long.
_SET_ELSEWHERE = {"engine": {"max_queued"}}

_T = TypeVar("_T")


def find_config(
    named: Path | None, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the file to read: the one named, the environment's, or the directory's.

    None means that there is nothing to read, which is no error.
    """
    if named is not None:
        return named
    if environment.get(CONFIG_VARIABLE):
        return Path(environment[CONFIG_VARIABLE])
    here = Path(CONFIG_NAME)
    return here if here.exists() else None


def load_config(
    path: Path | None, environment: Mapping[str, str] = os.environ
) -> PrefoldConfig:
    """Read the file, if one is given, and what the environment says.

    Paths in the file are relative to its directory.

    Raises:
        ConfigError: The file cannot be read or is no TOML, or a section, a name or a
            value cannot be used; the message names the place.
    """
    document = {} if path is None else _read_document(path)
    directory = Path() if path is None else path.parent
    from_environment = _read_environment(environment)
    try:
        _check_sections(document)
        server = _read_section("server", ServerConfig, document, directory)
        engine = _read_section("engine", SchedulerConfig, document, directory)
        tenants = _read_tenants(document.get(_TENANTS, []), directory)
        return PrefoldConfig(
            model=_read_section("model", ModelConfig, document, directory),
            cache=_read_section("cache", CacheConfig, document, directory),
            engine=dataclasses.replace(engine, max_queued=server.max_queued),
            adapters=_read_adapters(document.get(_ADAPTERS, {}), directory),
            server=dataclasses.replace(
                server,
                key_file=from_environment.key_file or server.key_file,
                admin_token_file=from_environment.token_file or server.admin_token_file,
            ),
            images=_read_section("images", ImagesConfig, document, directory),
            tenants=(
                tenants if from_environment.tenants is None else from_environment.tenants
            ),
        )
    except ConfigError as exc:
        if path is None:
            raise
        raise ConfigError(f"{path}: {exc}") from exc


# -- the environment -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    key_file: Path | None
    token_file: Path | None
    tenants: tuple[TenantConfig, ...] | None


def _read_environment(environment: Mapping[str, str]) -> _Environment:
    text = environment.get(TENANTS_VARIABLE)
    return _Environment(
        key_file=_environment_path(environment, KEY_FILE_VARIABLE),
        token_file=_environment_path(environment, ADMIN_TOKEN_FILE_VARIABLE),
        tenants=_parse_tenants(text) if text else None,
    )


def _environment_path(environment: Mapping[str, str], name: str) -> Path | None:
    # Empty is what many tools write for "not set".
    return Path(environment[name]) if environment.get(name) else None


def _parse_tenants(text: str) -> tuple[TenantConfig, ...]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, list) or not all(isinstance(t, dict) for t in document):
        raise ConfigError(
            f"{TENANTS_VARIABLE} must be a JSON array of objects, such as "
            '[{"name": "acme", "max_concurrent": 8}]'
        )
    try:
        return _read_tenants(document, Path())
    except ConfigError as exc:
        raise ConfigError(f"{TENANTS_VARIABLE}: {exc}") from exc


# -- the file --------------------------------------------------------------------------


def _read_document(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"cannot read the configuration {path}: {exc.strerror}") from exc
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"the configuration {path} is larger than {_MAX_BYTES} bytes")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not text in UTF-8") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path} is nested too deeply") from exc
    except ValueError as exc:
        raise ConfigError(f"{path} is not valid TOML: {exc}") from exc


def _check_sections(document: Mapping[str, object]) -> None:
    sections = (*_CLASS_BY_SECTION, _ADAPTERS)
    written = [*(f"[{section}]" for section in sections), f"[[{_TENANTS}]]"]
    for name, value in document.items():
        if name in sections or name == _TENANTS:
            continue
        if isinstance(value, dict | list):
            hint = nearest(name, written)
            raise ConfigError(f"there is no section [{name[:40]}]; {hint}")
        raise ConfigError(f"{name[:40]} stands outside of any section; {_place_of(name)}")


def _read_section(
    section: str,
    make: Callable[..., _T],
    document: Mapping[str, object],
    directory: Path,
) -> _T:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{section}] must be one section, got {_name_of(table)}")
    return _read_table(f"[{section}]", section, make, table, directory)


def _read_adapters(table: object, directory: Path) -> Mapping[str, Path]:
    """Return the directories that the section ``[adapters]`` gives by name."""
    if not isinstance(table, dict):
        raise ConfigError(f"[{_ADAPTERS}] must be one section, got {_name_of(table)}")
    adapters = {}
    for name, value in table.items():
        if not isinstance(value, str):
            raise ConfigError(
                f"[{_ADAPTERS}] {name[:40]} must be {_NAMES[Path]}, got {_name_of(value)}; "
                "write a name with dots in quotes"
            )
        adapters[name] = _path(value, directory)
    return adapters


def _read_tenants(tables: object, directory: Path) -> tuple[TenantConfig, ...]:
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ConfigError(
            "tenants are written as [[tenants]], in two brackets, once for each"
        )
    tenants = []
    for number, table in enumerate(tables, start=1):
        where = f"[[tenants]] number {number}"
        if "name" not in table:
            raise ConfigError(f"{where} has no name")
        if table.get("domain") == "":
            raise ConfigError(f"{where} domain is empty; leave it out to use the name")
        tenants.append(_read_table(where, _TENANTS, TenantConfig, table, directory))
    return tuple(tenants)


def _read_table(
    where: str,
    section: str,
    make: Callable[..., _T],
    table: Mapping[str, object],
    directory: Path,
) -> _T:
    kinds = _kinds(section)
    values = {}
    for name, value in table.items():
        if name not in kinds:
            raise ConfigError(f"{where} has no setting {name[:40]}; {_meant(name, kinds)}")
        try:
            values[name] = _convert(kinds[name], value, directory)
        except ConfigError as exc:
            raise ConfigError(f"{where} {name} {exc}") from exc
    try:
        return make(**values)
    except ConfigError as exc:
        raise ConfigError(f"{where} {exc}") from exc


def _kinds(section: str) -> Mapping[str, object]:
    """Return the types of the settings that may stand in a section."""
    described = TenantConfig if section == _TENANTS else _CLASS_BY_SECTION[section]
    hints = get_type_hints(described)
    return {
        setting.name: hints[setting.name]
        for setting in dataclasses.fields(described)
        if setting.name not in _SET_ELSEWHERE.get(section, ())
    }


def _meant(name: str, known: Iterable[str]) -> str:
    return _place_of(name) if _sections_of(name) else nearest(name, known)


def _place_of(name: str) -> str:
    sections = _sections_of(name)
    if sections:
        return f"it belongs below [{sections[0]}]"
    return nearest(name, [n for section in _CLASS_BY_SECTION for n in _kinds(section)])


def _sections_of(name: str) -> list[str]:
    return [section for section in _CLASS_BY_SECTION if name in _kinds(section)]


def _convert(kind: object, value: object, directory: Path) -> object:
    kinds = _alternatives(kind)
    if isinstance(value, list) and _PATHS in kinds:
        return _texts(value)
    # Of exactly that type: a bool is an int to Python, and never meant as one here.
    if type(value) not in {accepted for k in kinds for accepted in _ACCEPTED[k]}:
        expected = " or ".join(_NAMES[k] for k in kinds if k is not NoneType)
        raise ConfigError(f"must be {expected}, got {_name_of(value)}")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ConfigError("must be a smaller number")
    return _path(value, directory) if isinstance(value, str) and Path in kinds else value


def _alternatives(kind: object) -> tuple[object, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _texts(values: list[object]) -> tuple[str, ...]:
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) < len(values):
        raise ConfigError(f"must be {_NAMES[_PATHS]}")
    return texts


def _path(text: str, directory: Path) -> Path:
    if not text or "\0" in text:
        raise ConfigError("must be the path of a file")
    try:
        return directory / Path(text).expanduser()
    except RuntimeError as exc:
        raise ConfigError("begins with the home directory of nobody here") from exc


#: The one kind of list that a setting can be.
_PATHS = tuple[str, ...]

_ACCEPTED: Mapping[object, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    Path: (str,),
    NoneType: (NoneType,),
    _PATHS: (),
}

_NAMES: Mapping[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    Path: "a path in quotes",
    _PATHS: "a list of texts in quotes",
    dict: "a table",
    list: "a list",
    NoneType: "nothing",
}


def _name_of(value: object) -> str:
    return _NAMES.get(type(value), "a date or time")
