"""Prints as JSON all that a program can find out about how it was started."""

import atexit
import gc
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import warnings

names_at_start = sorted(globals())


def stream(file):
    return {
        "name": file.name,
        "mode": file.mode,
        "encoding": file.encoding,
        "errors": file.errors,
        "line_buffering": file.line_buffering,
        "write_through": getattr(file, "write_through", None),
        "newlines": repr(file.newlines),
        "buffer": type(file.buffer).__name__,
        "number": file.fileno(),
        "tty": file.isatty(),
    }


def dispositions():
    handlers = {str(n): signal.getsignal(n) for n in signal.valid_signals()}
    return {n: getattr(one, "__qualname__", str(one)) for n, one in handlers.items()}


def masks():
    with open("/proc/self/status") as file:
        rows = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    return {key: rows[key] for key in ("SigBlk", "SigIgn", "SigCgt", "Umask")}


def read(path):
    with open(path) as file:
        return file.read()


def files():
    found = {}
    for number in sorted(int(n) for n in os.listdir("/proc/self/fd")):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
    return found


main = sys.modules["__main__"]
told = {
    "children": read(f"/proc/self/task/{os.getpid()}/children"),
    "files": {n: path for n, path in files().items() if n > 2},
    "name": __name__,
    "file": __file__,
    "doc": __doc__,
    "package": __package__,
    "spec": repr(__spec__) if __spec__ is None else [__spec__.name, __spec__.origin],
    "loader": type(__loader__).__name__,
    "cached": globals().get("__cached__", "absent"),
    "names": names_at_start,
    "builtins": type(__builtins__).__name__,
    "code": sys._getframe().f_code.co_filename,
    "frames": sys._getframe().f_back is None or "runs under another program",
    "main": main.__dict__ is globals(),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "executable": sys.executable,
    "prefix": sys.prefix,
    "flags": str(sys.flags),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "trace": [sys.gettrace(), sys.getprofile()],
    "recursion": sys.getrecursionlimit(),
    "streams": [stream(f) for f in (sys.stdin, sys.stdout, sys.stderr)],
    "same_streams": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__],
    "environ": dict(os.environ),
    "environ_shown": sorted(read("/proc/self/environ").split("\0")),
    "cmdline": read("/proc/self/cmdline"),
    "comm": read("/proc/self/comm"),
    "cwd": os.getcwd(),
    "leader": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "signals": dispositions(),
    "masks": masks(),
    "limits": [resource.getrlimit(n) for n in range(16)],
    "nice": os.nice(0),
    "affinity": sorted(os.sched_getaffinity(0)),
    "threads": [t.name for t in threading.enumerate()],
    "main_thread": threading.current_thread() is threading.main_thread(),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "logging": [repr(h) for h in logging.getLogger().handlers],
    "warnings": [str(f) for f in warnings.filters[:3]],
}
of_a_child = subprocess.run(["env", "-0"], capture_output=True, text=True, check=True).stdout
told["environ_of_children"] = sorted(of_a_child.split("\0"))
atexit.register(lambda: print("atexit ran"))
print(json.dumps(told))
