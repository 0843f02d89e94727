"""Models by name: the ones shipped here, or any function ``package.module:function``."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from torch import nn
from torch.nn.parameter import is_lazy

from fedfi.arguments import expect, named
from fedfi.errors import InputError, SettingError, unknown
from fedfi.importing import call, import_callable
from fedfi.models.cnn import cnn
from fedfi.models.itemtable import item_table
from fedfi.models.mlp import mlp
from fedfi.models.resnet18 import resnet18
from fedfi.models.roberta import roberta
from fedfi.models.shapes import InputSpec
from fedfi.models.smallcnn import small_cnn
from fedfi.validation import is_plain, shown, validate

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "small_cnn": small_cnn,
    "resnet18": resnet18,
    "roberta": roberta,
    "item_table": item_table,
}
_SCALED: tuple[Callable[..., nn.Module], ...] = (mlp, cnn, small_cnn, resnet18)
"""Models whose options scale them."""
_OUTSIDE: Mapping[str, tuple[str, ...]] = {"roberta": ("checkpoint",)}
"""Options that name a folder, or a repository of a hub, from which a model is loaded."""


def available() -> dict[str, str]:
    """The models by name, each with a one-line summary."""
    return {name: (inspect.getdoc(make) or "").split("\n")[0] for name, make in _MODELS.items()}


@named
def build(name: str, spec: InputSpec, options: Mapping[str, object] | None = None, **more: object) -> nn.Module:
    """Makes a model for data of a certain kind; initial values come from torch's global generator.

    Args:
        name: One of `available`, or ``package.module:function``, called as ``function(spec, **options)``.
        spec: What the data are.
        options: The model's keyword arguments, such as from a TOML table: they are checked against the
            function's annotations and converted (a list to a tuple). Those without an annotation, or with one
            that pydantic cannot check, are passed on as given.
        more: Further keyword arguments of the model, such as ``hidden=[8]``.

    Returns:
        A module that maps inputs ``[batch, *spec.shape]`` to logits ``[batch, spec.classes]``.

    Raises:
        InputError: If there is no such model or option, an option is missing or has a wrong value, the data
            do not suit the model, or the function returns no module.
    """
    expect("build: name", name, str, f"a text: {', '.join(_MODELS)}, or package.module:function")
    expect("build: spec", spec, InputSpec, "a fedfi.InputSpec, such as the spec of data")
    expect("build: options", options, (Mapping, type(None)), "a table of options, or options by name")
    make, where = _find(name), f"model {name!r}"
    twice = sorted((options or {}).keys() & more.keys())
    if twice:
        raise InputError(f"{where}: {twice[0]}: is given twice, in the table of options and by name")
    options = {**(options or {}), **more}
    try:
        checked = _checked(make, where, options)
    except SettingError as error:
        raise InputError(f"{where}: {error}") from error
    if make in _SCALED:
        with torch.device("meta"):  # shapes alone: the system may kill a process that asks for too much
            _check_size(call(make, where, spec, **checked), where)
    model = call(make, where, spec, **checked)
    if not isinstance(model, nn.Module):
        raise InputError(f"{where} must return a torch.nn.Module, got {type(model).__name__}")
    check_module(model)
    return model


def outside(name: str) -> tuple[str, ...]:
    """Options of a model that make it load something from a folder or a hub."""
    return _OUTSIDE.get(name, ())


def trained_size(name: str, spec: InputSpec, options: Mapping[str, object]) -> int:
    """How many trained numbers a model has, found without taking memory for them; models of `available` only.

    Raises:
        InputError: As `build`.
    """
    where = f"model {name!r}"
    if name not in _MODELS:
        raise InputError(unknown("model", name, _MODELS))
    try:
        checked = _checked(_MODELS[name], where, options)
        with torch.device("meta"):
            module = call(_MODELS[name], where, spec, **checked)
    except SettingError as error:
        raise InputError(f"{where}: {error}") from error
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def check_options(name: str, options: Mapping[str, object]) -> None:
    """Checks a model's options as far as that is possible without data.

    Args:
        name: As for `build`.
        options: As for `build`.

    Raises:
        InputError: As `build`; a `SettingError` where one option is to blame.
    """
    _checked(_find(name), f"model {name!r}", options)


def check_module(module: nn.Module) -> None:
    """Checks that a module's parameters can be laid out as one vector, whoever made it.

    Raises:
        InputError: If a parameter or buffer has no shape (torch's lazy modules) or no values (device meta), or
            trainable ones differ in their type of number.
    """
    where = f"the model {type(module).__name__}"
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise InputError(f"{where}: {name!r} has no shape yet; run the model on an example before returning it")
        if tensor.is_meta:
            raise InputError(f"{where}: {name!r} is on the device 'meta' and has no values; make it on the CPU")
    kinds: dict[torch.dtype, str] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            kinds.setdefault(parameter.dtype, name)
    if len(kinds) > 1:
        (first, a), (second, b) = list(kinds.items())[:2]
        raise InputError(f"{where}: {a!r} is {first}, {b!r} is {second}; make all trainable parameters of one dtype")


def options(name: str) -> list[inspect.Parameter]:
    """The options that a model takes: the parameters of its function but the first.

    Raises:
        InputError: If there is no such model.
    """
    return _parameters(_find(name), f"model {name!r}")[1:]


def documented(name: str) -> dict[str, str]:
    """What the section `Args` of a model's docstring says of each option; empty where there is none.

    Raises:
        InputError: If there is no such model.
    """
    _, _, section = (inspect.getdoc(_find(name)) or "").partition("\nArgs:\n")
    found: dict[str, str] = {}
    option = ""
    for line in section.split("\n"):
        if line and not line.startswith(" "):  # the next section
            break
        if (begun := re.match(r"    (\w+)(?: \([^)]*\))?: (.*)", line)) is not None:
            option = begun[1]
            found[option] = begun[2]
        elif option and line.strip():
            found[option] += f" {line.strip()}"
    return {option: text.replace("`", "").rstrip(".") for option, text in found.items()}


def _find(name: str) -> Callable[..., object]:
    if name in _MODELS:
        return _MODELS[name]
    if ":" not in name:
        raise InputError(unknown("model", name, _MODELS) + " or give package.module:function")
    found: Callable[..., object] = import_callable(name, "model")
    return found


def _check_size(shapes: nn.Module, where: str) -> None:
    size = sum(p.numel() * p.element_size() for p in shapes.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        sizes = f"{size / 1e9:.0f} GB for its parameters, of {memory / 1e9:.0f} GB"
        raise InputError(f"{where} needs more memory than there is ({sizes})")


def _checked(make: Callable[..., object], where: str, options: Mapping[str, object]) -> dict[str, object]:
    first, *parameters = _parameters(make, where)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option not in named and not takes_any:
            if not named:
                raise SettingError(f"{option}: the model has no options")
            raise SettingError(f"{option}: " + unknown("option", option, named))
    for option, parameter in named.items():
        if parameter.default is parameter.empty and option not in options:
            raise SettingError(f"{option}: is missing, the model needs it{_of_class(make, first.name)}")
    checked = dict(options)
    for option in named.keys() & options.keys():
        checked[option] = _value(named[option].annotation, options[option], option)
    return checked


def _of_class(make: Callable[..., object], first: str) -> str:
    """What to do where a model is named by its class, which takes something else than the input specification first."""
    if not isinstance(make, type):
        return ""
    return (
        f"; {first!r}, the first of the class {make.__name__}, would be given the input specification: name a function"
        f" that makes the model, such as def net(spec): return {make.__name__}(...)"
    )


def _parameters(make: Callable[..., object], where: str) -> list[inspect.Parameter]:
    try:
        try:
            signature = inspect.signature(make, eval_str=True)
        except (NameError, AttributeError, SyntaxError):  # annotations for type checkers only stay strings
            signature = inspect.signature(make)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} has no signature to check options against: {error}") from error
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise InputError(f"{where} must take the input specification as its first argument")
    return parameters


def _value(annotation: Any, value: object, option: str) -> object:
    """The value, converted to what the annotation says; annotations that cannot be checked let it pass."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return value
    try:
        if is_plain(value):
            return validate(annotation, value, path=[option])
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError):
        return value
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingError(f"{option} = {shown(value)}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error
