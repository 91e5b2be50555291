"""The work of ``prefold cache`` and ``prefold domains``: ask a server, show its answer."""

from __future__ import annotations

import json
import os
from pathlib import Path

from prefold.cli.admin_client import AdminTarget, ask
from prefold.cli.admin_options import AdminOptions, AdminPlace, PromptSource
from prefold.cli.admin_tables import show
from prefold.errors import ConfigError, InvalidInputError
from prefold.server.config_file import find_config, load_config
from prefold.server.credentials import default_token_path

#: Names the admin plane where no option does.
ADMIN_URL_VARIABLE = "PREFOLD_ADMIN_URL"

_MAX_FILE_BYTES = 10_000_000


def run_admin(options: AdminOptions) -> int:
    """Ask, and show the answer."""
    fields = {name: it for name, it in options.fields.items() if it is not None}
    # The one field whose value may be null, and it is only there where it was given.
    if "value" in options.fields:
        fields["value"] = options.fields["value"]
    if options.prompt is not None:
        fields |= _read_prompt(options.prompt, is_needed=options.needs_prompt)
    document = ask(_locate(options.place), options.action, options.path, fields)
    if options.as_json:
        print(json.dumps(document))
    else:
        show(options.action, document)
    return 0


def _locate(place: AdminPlace) -> AdminTarget:
    server = load_config(find_config(place.config)).server
    url = place.url or os.environ.get(ADMIN_URL_VARIABLE)
    if not url:
        if not server.admin_port:
            raise ConfigError(
                "the configuration lets the admin plane take any port; give its address "
                f"with --url or {ADMIN_URL_VARIABLE}"
            )
        host = server.admin_host
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.admin_port}"
    token_file = place.token_file or server.admin_token_file or default_token_path()
    return AdminTarget(url=url, token_file=token_file)


def _read_prompt(source: PromptSource, *, is_needed: bool) -> dict[str, object]:
    given = [
        it
        for it in (source.prompt, source.prompt_file, source.messages_file)
        if it is not None
    ]
    if len(given) > 1 or (is_needed and not given):
        raise InvalidInputError(
            "give the prompt with one of --prompt, --prompt-file and --messages-file"
        )
    if source.prompt_file is not None:
        return {"prompt": _read(source.prompt_file)}
    if source.messages_file is not None:
        return _messages(_read(source.messages_file), source.messages_file)
    return {} if source.prompt is None else {"prompt": source.prompt}


def _messages(text: str, path: Path) -> dict[str, object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidInputError(f"{path} is no JSON") from exc
    if isinstance(document, list):
        return {"messages": document}
    if isinstance(document, dict) and {"messages"} <= document.keys() <= {
        *("messages", "tools")
    }:
        return document
    raise InvalidInputError(
        f"{path} must hold a list of messages, or an object with messages and tools"
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise InvalidInputError(f"cannot read {path}: {exc.strerror}") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidInputError(f"{path} is larger than {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidInputError(f"{path} is not text in UTF-8") from exc
