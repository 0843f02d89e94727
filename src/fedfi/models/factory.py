"""Models by name: the ones shipped here, or any function ``package.module:function``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from torch import nn

from fedfi.errors import InputError, unknown
from fedfi.importing import import_callable
from fedfi.models.cnn import cnn
from fedfi.models.itemtable import item_table
from fedfi.models.mlp import mlp
from fedfi.models.resnet18 import resnet18
from fedfi.models.roberta import roberta
from fedfi.models.shapes import InputSpec
from fedfi.models.smallcnn import small_cnn

_MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "small_cnn": small_cnn,
    "resnet18": resnet18,
    "roberta": roberta,
    "item_table": item_table,
}


def available() -> dict[str, str]:
    """The models by name, each with a one-line summary."""
    return {name: (inspect.getdoc(make) or "").split("\n")[0] for name, make in _MODELS.items()}


def build(name: str, spec: InputSpec, options: Mapping[str, object]) -> nn.Module:
    """Makes a model for data of a certain kind; initial values come from torch's global generator.

    Args:
        name: One of `available`, or ``package.module:function``, called as ``function(spec, **options)``.
        spec: What the data are.
        options: The model's keyword arguments, such as from a TOML table: they are checked against the
            function's annotations and converted (a list to a tuple). Those without an annotation, or with one
            that pydantic cannot check, are passed on as given.

    Returns:
        A module that maps inputs ``[batch, *spec.shape]`` to logits ``[batch, spec.classes]``.

    Raises:
        InputError: If there is no such model or option, an option is missing or has a wrong value, the data
            do not suit the model, or the function returns no module.
    """
    make = _find(name)
    model = make(spec, **_checked(make, f"model {name!r}", options))
    if not isinstance(model, nn.Module):
        raise InputError(f"model {name!r} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def options(name: str) -> list[inspect.Parameter]:
    """The options that a model takes: the parameters of its function but the first.

    Raises:
        InputError: If there is no such model.
    """
    return _parameters(_find(name), f"model {name!r}")[1:]


def _find(name: str) -> Callable[..., object]:
    if name in _MODELS:
        return _MODELS[name]
    if ":" not in name:
        raise InputError(unknown("model", name, _MODELS) + " or give package.module:function")
    found: Callable[..., object] = import_callable(name, "model")
    return found


def _checked(make: Callable[..., object], where: str, options: Mapping[str, object]) -> dict[str, object]:
    _, *parameters = _parameters(make, where)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option not in named and not takes_any:
            if not named:
                raise InputError(f"{where} has no options, got {option!r}")
            raise InputError(f"{where}: " + unknown("option", option, named))
    for option, parameter in named.items():
        if parameter.default is parameter.empty and option not in options:
            raise InputError(f"{where} needs the option {option!r}")
    checked = dict(options)
    for option in named.keys() & options.keys():
        checked[option] = _value(named[option].annotation, options[option], f"{where}: option {option!r}")
    return checked


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


def _value(annotation: Any, value: object, where: str) -> object:
    """The value, converted to what the annotation says; annotations that cannot be checked let it pass."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return value
    if get_origin(annotation) is Literal and value not in get_args(annotation):
        raise InputError(f"{where}: " + unknown("value", value, map(str, get_args(annotation))))
    try:
        return TypeAdapter(annotation).validate_python(value)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation):
        return value
    except ValidationError as error:
        first = error.errors()[0]
        at = "".join(f"[{part!r}]" for part in first["loc"])
        reason = first["msg"][:1].lower() + first["msg"][1:]
        raise InputError(f"{where}{at}: {reason}, got {first['input']!r}") from error
