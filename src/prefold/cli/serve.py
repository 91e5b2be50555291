"""The work of ``prefold serve``: the configuration, then the server, then what it is at."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

from prefold.cli.console import Screen, format_bytes
from prefold.cli.lazy import load
from prefold.cli.quiet import quiet_libraries
from prefold.cli.serve_options import ServeOptions
from prefold.errors import ConfigError
from prefold.server.announcement import Announcement
from prefold.server.config import CacheConfig, ModelConfig, PrefoldConfig, ServerConfig
from prefold.server.config_file import find_config, load_config

#: What the extra ``server`` brings; the rest of the program does without.
_NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def run_serve(options: ServeOptions) -> int:
    """Serve until a signal comes; return 0 after SIGTERM and 130 after Ctrl-C."""
    config = resolve_config(options)
    _check_installed()
    quiet_libraries(config.model.source)
    with Screen(as_json=options.as_json) as screen:

        def announce(what: Announcement) -> None:
            if options.as_json:
                screen.print_json(what.to_json())
                return
            for line in lines_of(what):
                screen.print_line(line)

        return load("prefold.server.serve", "serve")(config, screen, announce)


def resolve_config(options: ServeOptions) -> PrefoldConfig:
    """Return the configuration file's values, under those of the command line.

    Raises:
        ConfigError: A file, a name or a value cannot be used.
    """
    config = load_config(find_config(options.config))
    return replace(
        config,
        model=_model(config.model, options),
        cache=_cache(config.cache, options),
        server=_server(config.server, options),
        adapters={**config.adapters, **dict(map(_adapter, options.adapters or ()))},
    )


def lines_of(what: Announcement) -> list[str]:
    """Return what people are told when a server is ready."""
    cache = f"{what.cache_tokens:,} tokens in {format_bytes(what.cache_bytes)}"
    tenants = "none: whoever is on this machine is served, without a key"
    if what.num_tenants:
        tenants = f"{what.num_tenants}, with keys of {what.key_file}"
    return [
        f"Serving {what.model}.",
        f"  clients    {what.public_url}/v1",
        f"  operators  {what.admin_url}, token in {what.token_file}",
        f"  page       {what.admin_url}/ui",
        f"  cache      {cache}. {what.exactness}",
        f"  tenants    {tenants}",
        "Ctrl-C ends the server.",
    ]


def _model(config: ModelConfig, options: ServeOptions) -> ModelConfig:
    return replace(
        config,
        source=config.source if options.model is None else options.model,
        served_name=options.served_name or config.served_name,
        dtype=options.dtype or config.dtype,
        device=options.device or config.device,
        num_threads=options.threads or config.num_threads,
        max_model_len=options.max_model_len or config.max_model_len,
        position_offset=_or(options.position_offset, config.position_offset),
        rehash=options.rehash or config.rehash,
    )


def _cache(config: CacheConfig, options: ServeOptions) -> CacheConfig:
    config = replace(
        config,
        block_size=_or(options.block_size, config.block_size),
        policy=options.cache_policy or config.policy,
    )
    if options.cache_memory is None and options.cache_blocks is None:
        return config
    # Either of the two replaces both of the file.
    return replace(config, memory=options.cache_memory, blocks=options.cache_blocks)


def _server(config: ServerConfig, options: ServeOptions) -> ServerConfig:
    return replace(
        config,
        host=options.host or config.host,
        port=_or(options.port, config.port),
        admin_host=options.admin_host or config.admin_host,
        admin_port=_or(options.admin_port, config.admin_port),
    )


def _adapter(text: str) -> tuple[str, Path]:
    name, sign, path = text.partition("=")
    if not sign or not path:
        raise ConfigError(
            "--adapter must be a name and a directory, such as support=adapters/support"
        )
    return name, Path(path)


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the server needs {', '.join(missing)}; run pip install 'prefold[server]'"
        )
