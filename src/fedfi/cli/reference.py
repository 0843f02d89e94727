"""The page of all keys, made from the validated tables when the documentation is built (a hook of mkdocs)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_PAGE = "reference.md"


def on_files(files: Any, config: Any) -> Any:
    """Adds the page to the documentation."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, _PAGE, content=reference()))
    return files


def reference() -> str:
    """The page, in Markdown."""
    from fedfi import registry
    from fedfi.cli.tables import keys_of, model_keys, tables
    from fedfi.data.partition import kinds
    from fedfi.models import available as models
    from fedfi.validation import as_toml

    parts = [
        "# Reference of all keys\n\nMade from the tables that check a file; `fedfi show NAME` prints the same of one"
        " name. A key without a default and not *required* may be left out.\n"
    ]
    tables_ = tables()
    shared = {name: tables_.pop(name) for name in ("model", "algorithm")}  # which come with what they name
    for name, (text, keys) in tables_.items():
        title = {"experiment": "Head of the file", "compare": "`[compare.LABEL]`"}.get(name, f"`[{name}]`")
        parts.append(f"## {title}\n\n{text}\n\n{_table(k.row() for k in keys)}")
    parts.append("## `[data] partition`\n")
    for name, kind in kinds().items():
        rows = _table(k.row() for k in keys_of(kind) if k.name != "by")
        parts.append(f'### `by = "{name}"`\n\n{kind.__doc__}\n\n{rows}')
    parts.append(f"## `[model]`\n\n{shared['model'][0]}\n\n{_table(k.row() for k in shared['model'][1])}")
    for name, summary in models().items():
        parts.append(f'### `name = "{name}"`\n\n{summary}\n\n{_table(k.row() for k in model_keys(name))}')
    parts.append(f"## `[algorithm]`\n\n{shared['algorithm'][0]}\n\n{_table(k.row() for k in shared['algorithm'][1])}")
    for name, entry in registry.entries().items():
        kind = registry.algorithm(name)
        parts.append(
            f'### `name = "{name}"`\n\n{entry.summary}: {entry.paper}.\n\n{_table(k.row() for k in keys_of(kind))}'
        )
        for preset, values in kind.presets.items():
            chosen = ", ".join(f"`{k} = {as_toml(v)}`" for k, v in values.items())
            parts.append(f'`preset = "{preset}"`: {chosen}\n')
    return "\n".join(parts)


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = [
        [f"`{key}`", _code(kind), _code(default) if default != "required" else "*required*", text]
        for key, kind, default, text in rows
    ]
    if not lines:
        return "No keys.\n"
    cells = [["key", "type", "default", "meaning"], ["---"] * 4, *lines]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
