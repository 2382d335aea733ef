"""Functions of users, named by a string: ``file.py:name`` or ``package.module:name``."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pfedfda.errors import InputError, quote

_named: set[str] = set()
_from_python: dict[str, Callable[..., Any]] = {}


def allow(spec: str) -> None:
    """Remember that the user has named this function, so that a file of settings may name it."""
    _named.add(spec)


def is_program(spec: str) -> bool:
    """Tell whether a name of a model or a backbone is that of a user's function."""
    return ":" in spec and not spec.startswith("transformers:")


def is_allowed(spec: str) -> bool:
    """Tell whether the user of this process has named this function, or given it in Python."""
    return spec in _named


def name_callable(factory: Callable[..., Any]) -> str:
    """Return a name in this process for a function that was given in Python."""
    spec = f"python:{getattr(factory, '__name__', type(factory).__name__).strip('<>')}"
    _from_python[spec] = factory
    allow(spec)
    return spec


def load_factory(spec: str) -> tuple[Callable[..., Any], str]:
    """Return the function that a string names, and the text of the program it is in."""
    if spec in _from_python:
        return _from_python[spec], spec
    place, _, name = spec.rpartition(":")
    if place == "python":
        raise InputError(
            f"The function {name} was given in Python by another program: give it again, with "
            f"model={name}."
        )
    if not place or not name.isidentifier():
        raise InputError(
            f"{quote(spec)} does not name a function; expected file.py:name or package.module:name."
        )
    try:
        module = _run_file(Path(place), name) if place.endswith(".py") else import_module(place)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(f"{quote(spec)} needs a package that is missing ({error}).") from error
    except Exception as error:  # there is no saying what a user's file raises
        raise InputError(f"{place} cannot be loaded ({describe_error(error)}).") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise InputError(f"{place} has no function {name!r}.")
    allow(spec)
    try:
        program = inspect.getsource(module)
    except (OSError, TypeError):
        program = spec
    return factory, program


def _run_file(path: Path, name: str) -> ModuleType:
    path = path.expanduser()
    if not path.is_file():
        raise InputError(f"There is no file {path} to take {name} from.")
    found = spec_from_file_location(f"pfedfda_user_{path.stem}", path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    sys.modules[module.__name__] = module
    found.loader.exec_module(module)
    return module


def describe_error(error: BaseException) -> str:
    """Return an error in a few words, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
