"""Records that several threads read for the first time."""

from __future__ import annotations

import sys

from tests.programs import ran

PROGRAM = """
import sys, threading, types
from fsdpkit.runs.reading import build_types
sys.setswitchinterval(1e-6)
FIELDS = ["Inner | None", "dict[str, tuple[int, ...]] | None"]
TEXT = "from __future__ import annotations\\nimport msgspec\\n"
TEXT += "class Inner(msgspec.Struct):\\n    a: int | None = None\\nclass Record(msgspec.Struct):\\n"
TEXT += "\\n".join(f"    f{n}: {FIELDS[n % 2]} = None" for n in range(40))
for n in range(400):
    module = sys.modules[f"m{n}"] = types.ModuleType(f"m{n}")
    exec(TEXT, module.__dict__)
    build_types()
    def read(wait):
        for _ in range(wait): pass
        module.msgspec.json.decode(b'{"f0": {"a": 3}}', type=module.Record)
    threads = [threading.Thread(target=read, args=(300 * k,)) for k in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_threads_may_read_a_kind_of_record_at_once_after_its_type_is_built() -> None:
    """Without `build_types()` the program ends with SIGSEGV."""
    assert ran([sys.executable, "-c", PROGRAM], status=0).stderr == ""
