"""What a smaller module keeps otherwise than the whole one, beside its tensors."""

from __future__ import annotations

from typing import Any

from torch import nn

Value = bool | int | float | str | list[Any]


def changed_attributes(module: nn.Module, small: nn.Module) -> dict[str, dict[str, Value]]:
    """The attributes that slicing changed, by module: numbers of groups and heads, say, which no shape shows.

    Args:
        module: The whole module.
        small: What `Wiring.shrink` made of it.

    Returns:
        Path -> attribute -> value in the smaller module, tuples as lists; of modules with the path ``""``, it is the
        module itself. Where another class took a module's place, its name is the attribute ``"class"``.
    """
    whole, found = dict(module.named_modules(remove_duplicate=False)), {}
    for path, part in small.named_modules(remove_duplicate=False):
        if path not in whole:
            continue
        before = _plain(whole[path])
        after = {name: value for name, value in _plain(part).items() if name in before and before[name] != value}
        if type(part) is not type(whole[path]):
            after["class"] = f"{type(part).__module__}.{type(part).__qualname__}"
        if after:
            found[path] = after
    return found


def _plain(module: nn.Module) -> dict[str, Value]:
    """Attributes that are numbers, texts or rows of them; the mode is none of them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training" and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
