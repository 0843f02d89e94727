"""Pages that are made when the documentation is built, a hook of mkdocs: all keys, and a page of each method."""

from __future__ import annotations

from typing import Any

_PAGE = "reference.md"


def on_config(config: Any) -> Any:
    """Adds the pages of methods to the navigation, under Methods."""
    from fedfi.cli.methods import sections

    (methods,) = (item["Methods"] for item in config.nav if "Methods" in item)
    methods.extend(sections())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to the documentation."""
    from mkdocs.structure.files import File

    from fedfi.cli.methods import pages

    for where, content in {_PAGE: reference(), **pages()}.items():
        files.append(File.generated(config, where, content=content))
    return files


def reference() -> str:
    """The page, in Markdown."""
    from fedfi import registry
    from fedfi.cli.methods import page_of
    from fedfi.cli.tables import keys_of, markdown_table, model_keys, tables
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
        parts.append(f"## {title}\n\n{text}\n\n{markdown_table(k.row() for k in keys)}")
    parts.append("## `[data] partition`\n")
    for name, kind in kinds().items():
        rows = markdown_table(k.row() for k in keys_of(kind) if k.name != "by")
        parts.append(f'### `by = "{name}"`\n\n{kind.__doc__}\n\n{rows}')
    text, keys = shared["model"]
    parts.append(f"## `[model]`\n\n{text}\n\n{markdown_table(k.row() for k in keys)}")
    for name, summary in models().items():
        parts.append(f'### `name = "{name}"`\n\n{summary}\n\n{markdown_table(k.row() for k in model_keys(name))}')
    text, keys = shared["algorithm"]
    parts.append(f"## `[algorithm]`\n\n{text}\n\n{markdown_table(k.row() for k in keys)}")
    for name, entry in registry.entries().items():
        kind = registry.algorithm(name)
        parts.append(
            f'### `name = "{name}"`\n\n{entry.summary}: {entry.paper}. [Equations, deviations]({page_of(name)})\n\n'
            + markdown_table(k.row() for k in keys_of(kind))
        )
        for preset, values in kind.presets.items():
            chosen = ", ".join(f"`{k} = {as_toml(v)}`" for k, v in values.items())
            parts.append(f'`preset = "{preset}"`: {chosen}\n')
    return "\n".join(parts)
