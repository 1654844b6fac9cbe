"""What a function in a person's file gives to be planned; the file is imported for that."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from fsdpkit.config.script_source import syntax_of, trains_when_imported
from fsdpkit.config.trust import TrustedScript
from fsdpkit.errors import ConfigError, UsageError
from fsdpkit.planning.compiled import not_compiled
from fsdpkit.planning.cuda_calls import cuda_is
from fsdpkit.planning.pretend import replaced
from fsdpkit.planning.unknown import place_of

KEYS = ("model", "batch", "forward", "loss", "blocks", "vocabulary", "last")
LENGTH = "length"


def given_by(
    name: str, script: TrustedScript, args: Sequence[str], length: int | None
) -> dict[str, Any]:
    """What the function returns; subjects.of_model says what that may be. Raises UsageError for
    what is none of it, and for a file that trains when it is imported, before it does."""
    file = name.rpartition(":")[0]
    _refuse_training(name, script)
    directory = script.path.resolve().parent
    sys.path.insert(0, str(directory))
    _forget_others(directory)
    sys.argv, before = [file, *args], sys.argv
    try:
        with not_compiled(), cuda_is(torch.device("cpu")), _without_training(name):
            return _checked(name, _called(name, script, length))
    except SystemExit as ended:
        raise UsageError(
            f"--model {name} ends the program (exit status {ended.code!r:.80}): give its "
            f"command-line arguments after --"
        ) from ended
    finally:
        sys.argv = before


def _called(name: str, script: TrustedScript, length: int | None) -> Any:
    function = name.rpartition(":")[2]
    try:
        module = imported(script)
    except UsageError:
        raise
    except Exception as error:
        raise _failed(name, "cannot be imported", error) from error
    made = getattr(module, function, None)
    if not callable(made):
        raise UsageError(f"--model {name}: {script.path.name} has no function {function}")
    if length is not None and LENGTH not in inspect.signature(made).parameters:
        raise UsageError(
            f"--model {name}: training.data.source_length is for a function with a parameter "
            f"`{LENGTH}`: add it, and build the batch by it"
        )
    try:
        return made() if length is None else made(**{LENGTH: length})
    except UsageError:
        raise
    except Exception as error:
        raise _failed(name, "fails", error) from error


def _checked(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not {"model", "batch"} <= given.keys():
        raise UsageError(f'--model {name}: return a dict with "model" and "batch"')
    if unknown := given.keys() - set(KEYS):
        raise UsageError(
            f"--model {name}: {', '.join(sorted(map(str, unknown)))}: not among {', '.join(KEYS)}"
        )
    if not isinstance(given["model"], nn.Module):
        raise ConfigError(f'--model {name}: "model" is not a torch.nn.Module')
    return dict(given)


# A file that trains as soon as it is imported


def _refuse_training(name: str, script: TrustedScript) -> None:
    tree = syntax_of(script.source)
    if tree is not None and (line := trains_when_imported(tree)) is not None:
        _refuse(name, f"line {line} of {script.path.name}")


@contextmanager
def _without_training(name: str) -> Iterator[None]:
    """Where the source did not show it: the first message or backward pass is refused."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        _refuse(name, "the file or the function")

    with replaced((dist, "init_process_group", refuse), (torch.autograd, "backward", refuse)):
        yield


def _refuse(name: str, who: str) -> NoReturn:
    raise UsageError(
        f"--model {name}: {who} would train here, and is not run: put what trains under "
        f'`if __name__ == "__main__":`, and only build the model and a batch in the function'
    )


# Importing


class _AsRead(SourceFileLoader):
    """Runs a script as it was read."""

    def __init__(self, script: TrustedScript) -> None:
        super().__init__(script.path.stem, str(script.path))
        self._source = script.source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


def imported(script: TrustedScript) -> ModuleType:
    """The script as a module, which others import by its name. Raises what it raises."""
    loader = _AsRead(script)
    spec = importlib.util.spec_from_file_location(loader.name, script.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses and pickles look there
    loader.exec_module(module)
    return module


def _forget_others(directory: Path) -> None:
    """A module beside the file is its own, as when it is started: one of the same name that lay
    beside another script, and was loaded for that, is not."""
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for path in directory.glob("*.py"):
        where = getattr(sys.modules.get(path.stem), "__file__", None)
        if where is None or Path(where).resolve() == path or path.stem in sys.stdlib_module_names:
            continue
        if PathFinder.find_spec(path.stem, installed) is None:
            del sys.modules[path.stem]


def _failed(name: str, how: str, error: Exception) -> UsageError:
    what = (str(error).strip().splitlines() or [""])[0][:160].rstrip(".")
    return UsageError(f"--model {name} {how}: {type(error).__name__}: {what}{place_of(error)}")
