"""What a rank does as its script imports argparse and torch: take LOCAL_RANK for an option
`--local_rank`, look at the process group that the script makes, or trains without, count its steps,
and time its waits for data.

A job whose ranks train in other worlds than their own (each by itself, half of them together) ends
well and trains something else. So size, rank and address of the default process group are compared
with those the rank was given, once, where it is made. What was found stands in
`$FSDPKIT_HEARTBEAT_DIR/world-<local rank>`, which the agent reads (node_launch.py); a wrong world
ends the rank.

Runs in whatever Python the rank has (3.7 or later), with the standard library alone, and imports
little of it before the script does (sitecustomize.py).
"""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

WRONG_WORLD = 78
"""Exit status (EX_CONFIG) of a rank whose process group is not the job's."""
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Tells torch's rendezvous that the store at the address is there already."""
_LOOPBACK = ("localhost", "127.", "::1", "[::1]")


class _Given:
    """What the agent gave this rank. Forked children of it are other processes: not watched."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank = os.environ["LOCAL_RANK"]
        self.nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        self.file = os.path.join(os.environ["FSDPKIT_HEARTBEAT_DIR"], f"world-{self.local_rank}")
        self.port = _port(_address("env://"))
        self.any_world = os.environ.get("FSDPKIT_WORLD") == "any"
        self.one_machine = bool(os.environ.get("FSDPKIT_ALLOW_LOOPBACK"))
        self.steps = _counter(self.local_rank) if self.local_rank == "0" else None
        self.thread, self.waits = _thread.get_ident(), False
        self.below, self.made = False, False

    def note(self, text: str) -> None:
        try:
            with open(self.file, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            return


def _counter(local_rank: str) -> memoryview | None:
    """Two numbers in a file of the node's memory, which the agent reads (sampling.py): steps, and
    nanoseconds of waiting for data."""
    import mmap

    path = os.path.join(os.environ["FSDPKIT_HEARTBEAT_DIR"], f"steps-{local_rank}")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(handle, 16)
            return memoryview(mmap.mmap(handle, 16)).cast("Q")
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return None


_given: _Given | None = None
before_ranks_meet: list[Callable[[], None]] = []
"""Called when the script makes its process group."""


def _here() -> _Given | None:
    return _given if _given is not None and _given.process == os.getpid() else None


def begin(*, watch: bool = True) -> None:
    """From now on this process is a rank. watch: unless it was forked from one that does."""
    global _given
    try:
        _given = _Given()
    except (KeyError, ValueError):  # started otherwise than by an agent
        return
    _given.note("none\n")
    if watch:
        watch_imports()


def begin_below(given: dict[str, Any]) -> None:
    """From now on this is a process that a rank with these attributes has started."""
    global _given
    _given = _Given.__new__(_Given)
    vars(_given).update(given, process=os.getpid(), below=True)
    for name in {*ACTIONS} - {"torch.optim.optimizer"}:
        del ACTIONS[name]
    watch_imports()


class _Finder:
    """First on sys.meta_path: lets the others find a module, and acts once it has run."""

    def __init__(self, actions: dict[str, Callable[[Any], None]]) -> None:
        self.actions = actions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: Any) -> None:
        loader, act = spec.loader, self.actions[spec.name]
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: Any) -> None:
            del loader.exec_module
            run(module)
            act(module)
            self.actions.pop(module.__name__, None)
            if not self.actions and self in sys.meta_path:
                sys.meta_path.remove(self)

        if hasattr(loader, "__dict__"):  # none in C
            loader.exec_module = exec_module


def watch_imports() -> None:
    """Act on modules that are loaded, and on the others when they are. Is idempotent."""
    waiting = {}
    for name, act in ACTIONS.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = act
        elif not hasattr(module, "_fsdpkit"):
            act(module)
    if waiting and not any(type(finder).__name__ == "_Finder" for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(waiting))


# An option --local_rank


def _give_local_rank(argparse: Any) -> None:
    """A parser with the option that torch.distributed.launch passes gets it, as under that one."""
    argparse._fsdpkit = True
    parse = argparse.ArgumentParser.parse_known_args
    left: Any = None

    def parse_known_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        nonlocal left
        given = _here()
        if given is None:
            return parse(self, args, namespace)
        words = sys.argv[1:] if args is None else list(args)
        # Of the command line, too: what another parser has left, or hands to a subcommand's.
        if args is None or args is left or (words and {*words} <= {*sys.argv[1:]}):
            words = [*_local_rank_option(self, given), *words]
        found = parse(self, words, namespace)
        left = found[1]
        return found

    parse_known_args.__doc__ = parse.__doc__
    argparse.ArgumentParser.parse_known_args = parse_known_args


def _local_rank_option(parser: Any, given: _Given) -> list[str]:
    known = getattr(parser, "_option_string_actions", {})
    names = [name for name in ("--local_rank", "--local-rank") if name in known]
    said = any(word.partition("=")[0] in names for word in sys.argv[1:])
    if not names or said or known[names[0]].nargs == 0:
        return []
    return [f"{names[0]}={given.local_rank}"]


# Processes that multiprocessing starts anew


def _look_below(spawn: Any) -> None:
    """They may train in a world of their own, as under `torch.multiprocessing.spawn`."""
    spawn._fsdpkit = True
    make = spawn.get_command_line

    def get_command_line(**more: Any) -> Any:
        line, given = make(**more), _here()
        if given is not None and not given.made and "-c" in line:
            at_start, code = os.path.dirname(os.path.abspath(__file__)), line.index("-c") + 1
            line[code] = (
                f"import sys; sys.path.insert(0, {at_start!r}); import in_rank; del sys.path[0]; "
                f"in_rank.begin_below({ {**vars(given), 'steps': None}!r}); "
                f"del sys.modules['in_rank'], in_rank; {line[code]}"
            )
        return line

    spawn.get_command_line = get_command_line


# The default process group


def _look_at_groups(c10d: Any) -> None:
    c10d._fsdpkit = True
    make = c10d.init_process_group

    def init_process_group(*args: Any, **more: Any) -> Any:
        given = _here()
        if given is None:
            return make(*args, **more)
        for look in before_ranks_meet:
            look()
        asked = _asked_for(args, more)
        address = _address(str(asked["init_method"] or "env://"))
        if not given.any_world:
            _compare(given, asked["rank"], asked["world_size"])
            _look_at_address(given, address, asked["store"])
        agents = os.environ.get(_AGENT_STORE)
        if address and _port(address) != given.port:  # of the script's own choice: no store there
            os.environ[_AGENT_STORE] = "False"
        made = make(*args, **more)
        if agents is not None:
            os.environ[_AGENT_STORE] = agents
        size, rank = c10d.get_world_size(), c10d.get_rank()
        if not given.any_world:
            _compare(given, rank, size)
        given.note(f"{rank} {size}\n")
        given.made = True
        _look_at_no_step()
        return made

    sys.modules["functools"].update_wrapper(init_process_group, make)  # torch has imported it
    for module in list(sys.modules.values()):  # torch.distributed, and others that have copied it
        if getattr(module, "__dict__", {}).get("init_process_group") is make:
            setattr(module, "init_process_group", init_process_group)  # noqa: B010


_first_step: Any = None
"""torch's handle of the hook below, until the first step of an optimizer."""


def _look_at_steps(optimizer: Any) -> None:
    global _first_step
    optimizer._fsdpkit = True
    register = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    if register is not None:
        _first_step = register(_before_first_step)
        optimizer.register_optimizer_step_post_hook(_after_step)


_counted: Any = None
"""The optimizer whose steps are counted: of several, the first to make one."""


def _after_step(optimizer: Any, *_: object) -> None:
    # Compilers of optimizers trace this: nothing but plain Python, and no calls of the system.
    global _counted
    given = _given
    if given is None or given.steps is None:
        return
    if _counted is None:
        _counted = optimizer
    if optimizer is _counted:
        given.steps[0] += 1


def _time_loading(dataloader: Any) -> None:
    """Count how long this process's main thread waits for a DataLoader to begin, and for each of
    its batches: not what a thread of the script's loads ahead, not a loader within a loader twice,
    and nothing in a loader's workers."""
    dataloader._fsdpkit = True
    for kind, name in (("_BaseDataLoaderIter", "__next__"), ("DataLoader", "__iter__")):
        owner = getattr(dataloader, kind, None)
        if name in getattr(owner, "__dict__", {}):
            setattr(owner, name, _timed(owner.__dict__[name]))


def _timed(call: Any) -> Any:
    def timed(self: Any) -> Any:
        given = _here()
        steps = given.steps if given is not None and not given.waits else None
        if given is None or steps is None or given.thread != _thread.get_ident():
            return call(self)
        given.waits, began_ns = True, time.monotonic_ns()
        try:
            return call(self)
        finally:
            given.waits = False
            steps[1] += time.monotonic_ns() - began_ns

    return sys.modules["functools"].update_wrapper(timed, call)  # torch has imported it


def _look_at_no_step() -> None:
    global _first_step
    if _first_step is not None:
        _first_step.remove()
        _first_step = None


def _before_first_step(*_: object) -> None:
    given = _here()
    if given is None:
        return
    _look_at_no_step()
    if given.any_world or given.size == 1:
        return
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    size = c10d.get_world_size() if c10d is not None and c10d.is_initialized() else None
    if given.below:
        all_gpus = given.nodes * int(os.environ.get("FSDPKIT_GPUS_PER_NODE", "0"))
        address = _address(str(getattr(c10d, "_default_pg_init_method", None) or "env://"))
        apart = given.nodes > 1 and not given.one_machine and address.startswith(_LOOPBACK)
        if size is not None and (apart or size not in (given.size, all_gpus)):
            _end(
                given,
                f"{_caller()} trains in a process group of {size}, in a process that rank "
                f"{given.rank} of {given.size} has started: the ranks would not train together. "
                f"Tell the script of all the job's nodes, with launch.ranks_per_node = 1",
            )
    elif size is None:
        _end(
            given,
            f"{_caller()} trains, but the script has made no process group: each of the job's "
            f"{given.size} ranks would train by itself, and all would write the same files. Call "
            f"init_process_group() first, or give the trainer all devices and nodes of the job",
        )


def _asked_for(args: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by name, the numbers from the environment where it gives none."""
    names = ("backend", "init_method", "timeout", "world_size", "rank", "store")
    asked = {**dict.fromkeys(names), **dict(zip(names, args)), **more}  # noqa: B905
    from_variables = str(asked["init_method"] or "env://").startswith("env://")
    for name, variable in (("world_size", "WORLD_SIZE"), ("rank", "RANK")):
        number = asked[name]
        if not isinstance(number, int) or number < 0:
            text = os.environ.get(variable, "")
            known = from_variables and asked["store"] is None and text.isdigit()
            asked[name] = int(text) if known else None
    return asked


def _compare(given: _Given, rank: int | None, size: int | None) -> None:
    wrong_size = size is not None and size != given.size
    if not wrong_size and (rank is None or rank == given.rank):
        return
    what = f"a process group of {size}" if size is not None else "a process group"
    as_rank = f" as rank {rank}" if rank is not None else ""
    follows = ""
    if wrong_size and size == 1:
        follows = ": each rank would train by itself, and all would write the same files"
    elif wrong_size:
        follows = ": its ranks would not train together"
    changed = [
        f"{name}={os.environ.get(name)}"
        for name, value in (("WORLD_SIZE", given.size), ("RANK", given.rank))
        if os.environ.get(name) != str(value)
    ]
    set_by = f" (the script has set {' and '.join(changed)})" if changed else ""
    _end(
        given,
        f"{_caller()} makes {what}{as_rank}{set_by}, but this is rank {given.rank} of "
        f"{given.size}{follows}. Take rank and size from RANK and WORLD_SIZE, or call "
        f"init_process_group() without them",
    )


def _address(method: str) -> str:
    """Where ranks are to meet, as `host:port`; empty if not at an address."""
    if method.startswith("tcp://"):
        return method[len("tcp://") :]
    if not method.startswith("env://"):
        return ""
    return f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"


def _port(address: str) -> str:
    return address.partition("?")[0].rpartition(":")[2]


def _look_at_address(given: _Given, address: str, store: Any) -> None:
    """Ranks on several nodes cannot meet at an address of the node itself."""
    if store is not None or given.nodes < 2 or given.one_machine:
        return
    if address.startswith(_LOOPBACK):
        _end(
            given,
            f"{_caller()} lets the ranks of {given.nodes} nodes meet at {address}, where each node "
            f"finds only itself. Leave MASTER_ADDR and MASTER_PORT as they are, and call "
            f"init_process_group() without init_method",
        )


def _caller() -> str:
    """The first frame outside of torch and of here, as `train.py, line 12,`."""
    frame: Any = sys._getframe(1)
    name = "the script"
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and f"{os.sep}torch{os.sep}" not in path:
            name = f"{os.path.basename(path)}, line {frame.f_lineno},"
            if f"{os.sep}site-packages{os.sep}" not in path:
                return name
        frame = frame.f_back
    return name


def _end(given: _Given, why: str) -> NoReturn:
    """No exception: a script may catch one, and train on."""
    why = f'{why}; for a world of its own: launch.world = "any".'
    given.note(f"wrong {why}\n")
    import traceback

    print(*traceback.format_stack(sys._getframe(2)), f"fsdpkit: {why}", file=sys.stderr, sep="")
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(WRONG_WORLD)


ACTIONS: dict[str, Callable[[Any], None]] = {
    "argparse": _give_local_rank,
    "multiprocessing.spawn": _look_below,
    "torch.distributed.distributed_c10d": _look_at_groups,
    "torch.optim.optimizer": _look_at_steps,
    "torch.utils.data.dataloader": _time_loading,
}
"""What is done with a module as soon as it is loaded, by its name."""
