"""Methods by name."""

import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pfedfda.errors import InputError, unknown
from pfedfda.methods.base import Method

M = TypeVar("M", bound=type[Method])
_registry: dict[str, type[Method]] = {}
_user_files: dict[str, Path] = {}


def register(method: M) -> M:
    """Make a method known under its name; a class decorator."""
    known = _registry.get(method.name)
    origins = {(m.__module__, m.__qualname__) for m in (known, method) if m is not None}
    if len(origins) > 1:
        raise InputError(f"Two methods are called {method.name!r}: {known} and {method}.")
    _registry[method.name] = method
    return method


def register_preset(
    method: type[Method], name: str, title: str, about: str, **values: Any
) -> type[Method]:
    """Make a method known under another name, with other defaults.

    Parameters
    ----------
    method
        The method.
    name, title
        The preset's name on the command line and in tables.
    about
        A sentence on what it is.
    values
        The hyper-parameters that it fixes.
    """
    own = [f.name for f in fields(method)]
    for value in values:
        if value not in own:
            raise unknown(f"hyper-parameter of {method.name}:", value, own)
    hints = get_type_hints(method, include_extras=True)
    content = {
        "__doc__": about,
        "__module__": sys._getframe(1).f_globals["__name__"],  # as for a class written there
        "__annotations__": {value: hints[value] for value in values},
        "__reduce__": _reduce,  # pickle would look for the class in its module
        "name": name,
        "title": title,
        "is_preset": True,
        **values,
    }
    preset: type[Method] = dataclass(frozen=True)(type(name, (method,), content))
    preset()  # refuses values that the method refuses
    return register(preset)


def _reduce(method: Method) -> tuple[Any, ...]:
    return _restore, (method.name, dict(vars(method)))


def _restore(name: str, values: dict[str, Any]) -> Method:
    return find_method(name)(**values)


def all_methods() -> dict[str, type[Method]]:
    """Return every known method by name, oldest paper first."""
    package = Path(__file__).parent
    for module in pkgutil.iter_modules([str(package)]):  # every file here may hold methods
        importlib.import_module(f"pfedfda.methods.{module.name}")
    return dict(sorted(_registry.items(), key=lambda item: (item[1].year, item[0])))


def find_method(name: str) -> type[Method]:
    """Return the method of this name.

    Parameters
    ----------
    name
        A registered name, or the path of a Python file that registers one method of its own, and
        presets of it if it likes.
    """
    methods = all_methods()
    if name in methods:
        return methods[name]
    if name.endswith(".py"):
        return load_method_file(Path(name))
    raise unknown("method", name, methods)


def expand_names(names: Iterable[str]) -> list[str]:
    """Return the names with ``all`` replaced by every method that is no preset, each once."""
    expanded: list[str] = []
    for name in names:
        if name == "all":
            expanded += [known for known, method in all_methods().items() if not method.is_preset]
        else:
            expanded.append(name)
    return list(dict.fromkeys(expanded))


def user_files() -> list[Path]:
    """Return the files that `load_method_file` has run; a fresh process must run them too."""
    return list(_user_files.values())


def is_loaded(path: Path) -> bool:
    """Tell whether `load_method_file` has run this file."""
    return path.is_file() and path.resolve() in _user_files.values()


def _place(error: Exception, path: Path) -> str:
    """Return in which line of a file an error arose, if that is known."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError):
        lines.append(error.lineno)
    return f" in line {lines[-1]}" if lines else ""


def load_method_file(path: Path) -> type[Method]:
    """Run a user's Python file and return the method that it registers."""
    if not path.is_file():
        raise InputError(f"There is no file {path} to take a method from.")
    module_name = f"pfedfda_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"The file {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _user_files.pop(module_name, None)
    for name in [name for name, m in _registry.items() if m.__module__ == module_name]:
        del _registry[name]  # what an earlier version of the file has registered
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # there is no saying what a user's file raises
        raise InputError(
            f"The file {path} cannot be loaded: {type(error).__name__}"
            f"{_place(error, path)} ({error})."
        ) from error
    added = [method for method in _registry.values() if method.__module__ == module_name]
    added = [method for method in added if not method.is_preset] or added
    if len(added) != 1:
        raise InputError(
            f"The file {path} registers {len(added)} methods; it must register exactly one with "
            f"@register."
        )
    _user_files[module_name] = path.resolve()
    return added[0]
