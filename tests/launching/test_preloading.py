"""Which libraries may be loaded before a script runs: those that could not tell the difference."""

from __future__ import annotations

import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from fsdpkit.launching.preloading import WITH_TORCH, preload_of, preloads_of, reading_of
from fsdpkit.launching.program import ColdStartError, Program
from tests.conftest import ROOT


def program(directory: Path, text: str, others: dict[str, str] | None = None) -> Program:
    """`python -u train.py` with this source, and other files beside it."""
    for name, source in {"train.py": text, **(others or {})}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return Program.parse([sys.executable, "-u", str(directory / "train.py")])


def test_our_trainers_ranks_find_loaded_what_every_step_needs() -> None:
    """A library imported late by the trainer's own source would put all of it off."""
    script = ROOT / "examples" / "T5-fsdp" / "fsdp_t5.py"
    found = preload_of(Program.parse([sys.executable, "-u", str(script)]))
    assert {*WITH_TORCH} <= {*found.modules}


# Each begins a script that imports torch on its next line, and is noticed by no import.
QUIET = [
    "try:\n    from apex import amp\nexcept ImportError:\n    amp = None",
    "import os\nos.environ['HF_HOME'] = '/scratch'",
    "import sys\nsys.dont_write_bytecode = True",
    "import sys\nx = sys.argv[0].split('/')[-1]\nif len(sys.argv) > 9:\n    print(x)",
    "'''Trains a model.'''",
    "from __future__ import annotations",
    "import os, sys\nimport argparse as ap\nparser = ap.ArgumentParser()\nparser.add_argument('n')",
    "import logging\nlog = logging.getLogger(__name__)\nlog.setLevel('INFO')",
    "import warnings\nwarnings.filterwarnings('ignore')",
    "import warnings\nwarnings.simplefilter(action='ignore', category=FutureWarning)",
    "import os\nrank = int(os.environ.get('RANK', 0))\nwhere = os.environ['HOME']",
    "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'",
    "import os\nos.environ.setdefault('NCCL_DEBUG', 'INFO')",
    "import os\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'",
    "import os\nos.environ.update(NCCL_DEBUG='INFO', MASTER_PORT='1')",
    "from os import environ, getenv\nx = getenv('A')\nenviron.get('B')",
    "def main():\n    import os\n    os.environ['A'] = 'b'",
    "from dataclasses import dataclass\n@dataclass\nclass A:\n    b: int = 3",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import anything",
    "try:\n    import numpy as np\nexcept ImportError:\n    np = None",
    "SIZES = [2 ** n for n in range(5)]\nNAMES = ', '.join(map(str, SIZES))",
    "import sys\nsys.path.insert(0, '/opt/own')",
    "import sys, os\nsys.path.append(os.path.join(os.path.dirname(__file__), 'x'))",
    "import sys\nfrom pathlib import Path\nROOT = Path(__file__).resolve().parents[1]\n"
    "sys.path.insert(0, str(ROOT / 'src'))",
    "import sys\nif sys.version_info < (3, 10):\n    print('too old')",
    "with open(__file__) as file:\n    text = file.read().strip()",
    "import local",
    "import numpy as np\nnp.random.seed(1)",
    "import os, subprocess\nsubprocess.run(['true'], env=dict(os.environ, A='b'))",
    "import os, subprocess\nsubprocess.run(['true'], env=os.environ)",
    "import sys\nlast = sys.path[-1].split('/')\nn = sys.path.index(sys.path[0])",
    "import os\nfor d in [os.environ['HOME'], '/x']:\n    d.startswith('/')",
    "names = sorted(['b', 'a'], key=lambda name: name.lower())",
]


@pytest.mark.parametrize("text", QUIET)
def test_what_no_import_notices_comes_before_torch(tmp_path: Path, text: str) -> None:
    made = program(tmp_path, f"{text}\nimport torch\n", {"local.py": "import json\njson.dumps(1)"})
    assert reading_of(made).noticed is None
    assert "torch" in preload_of(made).modules


# Each of these may change what torch finds, or sees, when it is loaded.
NOTICED = [
    "import os\nmatch os.name:\n    case _:\n        os.environ['A'] = 'b'",
    "def setup(): ...\nfor f in (setup, print):\n    f()",
    "import functools\ndef setup(): ...\ngo = functools.partial(setup)\ngo()",
    "def setup(): ...\nA = {'a': setup}\nA['a']()",
    "def setup(): ...\nlist(map(setup, [1]))",
    "def run_now(f): return f()\n@run_now\ndef setup(): ...",
    "import local_else",
    "from trace import setup\nsetup()",
    "from local_star import *\nprofile()",
    "from local_star import env\nenv['X'] = 'y'",
    "from os import *\nenviron['OMP_NUM_THREADS'] = '4'",
    "from namespace.part import x",
    "from own_package import mod",
    "import sys\nsys.path.append('lib')\nfrom common.env import x",
    "import multiprocessing as mp\nmp.set_start_method('spawn')",
    "import sys\nsys.meta_path.insert(0, None)",
    "import json\njson.loads = None",
    "import os\nos.environ['OMP_NUM_THREADS'] = '4'",
    "import os\nos.environ['ANYTHING_ELSE'] = '4'",
    "import os\nos.environ.update(settings)",
    "import os\nos.environ.setdefault('TORCH_LOGS', 'dynamo')",
    "import os\nname = 'OMP_NUM_THREADS'\nos.environ[name] = '4'",
    "from os import environ\nenviron['TORCH_LOGS'] = 'dynamo'",
    "import os as system\nsystem.putenv('A', 'b')",
    "import os\nos.environ |= {'OMP_NUM_THREADS': '4'}",
    "import os\ndel os.environ['OMP_NUM_THREADS']",
    "import os\nfor k in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):\n    os.environ[k] = '4'",
    "import os\nif True:\n    os.environ['OMP_NUM_THREADS'] = '4'",
    "from dotenv import load_dotenv\nload_dotenv()",
    "def setup():\n    import os\n    os.environ['OMP_NUM_THREADS'] = '4'\n\n\nsetup()",
    "import sys\nsys.path.insert(0, where())",
    "import sys\nsys.path = ['/opt/own', *sys.path]",
    "import sys\nsys.modules['numpy'] = None",
    "import os\nos.chdir('/data')",
    "exec(open('settings.py').read())",
    "import importlib\nimportlib.import_module('mine')",
    "import local_environment",
    "class A:\n    import os\n    os.environ['OMP_NUM_THREADS'] = '4'",
    "import os\n@os.environ.setdefault('OMP_NUM_THREADS', '2').join\ndef f(): ...",
    "import os\nx = (lambda: 1)() or os.environ.pop('OMP_NUM_THREADS')",
    "import no_library_of_this_name",
    "import os\nfrom unittest import mock\n"
    "mock.patch.dict(os.environ, {'OMP_NUM_THREADS': '4'}).start()",
    "import os, operator\noperator.setitem(os.environ, 'OMP_NUM_THREADS', '4')",
    "import os\nlist(map(os.environ.setdefault, ['OMP_NUM_THREADS'], ['4']))",
    "import os\nlist(map(lambda name: os.environ.pop(name, 0), ['OMP_NUM_THREADS']))",
    "import contextlib, os\nwith contextlib.ExitStack() as stack:\n"
    "    stack.callback(os.environ.pop, 'OMP_NUM_THREADS')",
    "import os\nvariables = getattr(os, 'environ')\nvariables.update(OMP_NUM_THREADS='4')",
    "import os\nfor each in [os.environ]:\n    each['OMP_NUM_THREADS'] = '4'",
    "import os\nos.environb.update({b'OMP_NUM_THREADS': b'4'})",
    "import posix\nposix.putenv('OMP_NUM_THREADS', '4')",
    "import sys\nsys.path.reverse()",
    "import sys\nsys.path_hooks.append(None)",
    "import warnings\nwarnings.simplefilter('error')",
    "import warnings\nwarnings.filterwarnings(action='error', category=UserWarning)",
    "import warnings\nwarnings.resetwarnings()",
]


@pytest.mark.parametrize("text", NOTICED)
def test_what_torch_s_import_might_notice_makes_a_cold_start(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "import os\nos.environ['OMP_NUM_THREADS'] = '4'\n"
    helpers = {
        "local_environment.py": other,
        "local_else.py": "if __name__ == '__main__':\n    pass\nelse:\n    "
        + other.replace("\n", "; "),
        "local_star.py": "from os import environ as env\ndef profile(): ...\n",
        "trace.py": "def setup(): ...\n",
        "namespace/part.py": other,
        "own_package/__init__.py": "from .utils import env_setup\n",
        "own_package/utils/env_setup.py": other,
        "own_package/mod.py": "",
        "lib/common/env.py": other,
    }
    made = program(tmp_path, f"{text}\nimport torch\n", helpers)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ColdStartError, match=r"\.py:\d+ (imports torch|loads)"):
        preload_of(made)


def test_libraries_are_loaded_up_to_the_first_statement_that_another_might_notice(
    tmp_path: Path,
) -> None:
    made = program(
        tmp_path,
        """
        import torch.nn as nn
        from torch.distributed import fsdp, checkpoint
        import os
        os.environ["OMP_NUM_THREADS"] = "4"
        import msgspec
        """,
    )
    modules = preload_of(made).modules
    assert "torch.distributed:checkpoint" in modules
    assert "msgspec" not in modules
    assert reading_of(made).later == {"msgspec": "train.py:6"}


def test_libraries_that_may_keep_what_each_rank_must_have_are_left_to_the_ranks(
    tmp_path: Path,
) -> None:
    made = program(tmp_path, "import torch\nimport transformers\nimport numpy\n")
    assert preload_of(made).modules == ("torch", "numpy")
    own, *named = preloads_of(made, ["transformers", "accelerate"])
    assert own == preload_of(made)
    assert [each.modules for each in named] == [("transformers",), ("accelerate",)]
    assert {each.directories for each in named} == {own.directories}


def test_torch_s_later_needs_wait_where_the_script_names_a_variable_that_they_read(
    tmp_path: Path,
) -> None:
    text = "import torch, os\ndef main():\n    os.environ['TORCHDYNAMO_VERBOSE'] = '1'\n"
    assert preload_of(program(tmp_path, text)).modules == ("torch", "os")


def test_what_only_some_runs_import_is_not_loaded(tmp_path: Path) -> None:
    text = """
        import sys, torch
        if sys.platform == "win32":
            import winreg
        try:
            import json
        except ImportError:
            import colorsys
        """
    modules = preload_of(program(tmp_path, text)).modules
    assert "json" in modules
    assert not {"winreg", "colorsys"} & set(modules)


@pytest.mark.parametrize(
    "text",
    [
        "import os, transformers\n",
        "import os\ndef main():\n    import transformers\n",
        "import os, importlib\nimportlib.import_module('torch')\n",
    ],
)
def test_libraries_that_may_load_torch_count_as_torch(tmp_path: Path, text: str) -> None:
    made = program(
        tmp_path, text.replace("import os", "import os\nos.environ['A'] = 'b'\nimport os")
    )
    with pytest.raises(ColdStartError, match="torch"):
        preload_of(made)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n"
        + "if x == 0:\n    pass\n"
        + "".join(f"elif x == {i}:\n    pass\n" for i in range(900)),
        "import sys\nsys.path.insert(0, '/" + "x" * 300 + "')\nimport torch\n",
        "try:\n    from " + "." * 60 + "a import b\nexcept ImportError:\n    pass\nimport torch\n",
    ],
    ids=["many-branches", "long-path", "deep-import"],
)
def test_whatever_python_can_run_ends_no_agent(tmp_path: Path, text: str) -> None:
    with suppress(ColdStartError):
        preload_of(program(tmp_path, text))


def test_a_script_that_never_imports_torch_may_be_forked(tmp_path: Path) -> None:
    made = program(tmp_path, "import os, json\nos.environ['A'] = 'b'\nprint(json.dumps(1))\n")
    assert preload_of(made).modules == ("os", "json")


def test_torch_imported_in_a_function_only_is_imported_late(tmp_path: Path) -> None:
    made = program(
        tmp_path,
        """
        def main():
            import torch

        if __name__ == "__main__":
            main()
        """,
    )
    with pytest.raises(ColdStartError, match=r"train\.py:3 imports torch"):
        preload_of(made)


def test_modules_beside_the_script_are_read_where_they_are_imported(tmp_path: Path) -> None:
    made = program(
        tmp_path,
        "import model\nimport torch\n",
        {
            "model.py": "from parts import block\nimport msgspec\n",
            "parts/__init__.py": "",
            "parts/block.py": "import torch\nfrom . import other\n",
            "parts/other.py": "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n",
        },
    )
    imports = reading_of(made)
    assert [name for name in imports.first if name.startswith("torch")] == ["torch"]
    assert imports.noticed == "other.py:2"
    assert imports.later == {"msgspec": "model.py:2"}


def test_a_module_by_name_is_read_like_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("import os\nos.environ['A'] = 'b'\n")
    (tmp_path / "own" / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ColdStartError, match="imports torch after __init__"):
        preload_of(Program.parse([sys.executable, "-u", "-m", "own.train"]))
    with pytest.raises(ColdStartError, match="not found"):
        preload_of(Program.parse([sys.executable, "-u", "-m", "own.absent"]))


@pytest.mark.parametrize("text", ["import = torch", "\0", "é".encode("latin-1").decode("latin-1")])
def test_what_is_no_python_is_left_to_python(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(text.encode("latin-1") + b"\n")
    with pytest.raises(ColdStartError, match="cannot be read"):
        preload_of(Program.parse([sys.executable, "-u", str(path)]))


def test_directories_that_a_script_adds_are_known(tmp_path: Path) -> None:
    made = program(
        tmp_path,
        """
        import sys
        from pathlib import Path
        sys.path.insert(0, str(Path(__file__).parent / "src"))
        import helper
        import torch
        """,
        {"src/helper.py": "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"},
    )
    with pytest.raises(ColdStartError, match=r"helper\.py:2"):
        preload_of(made)
    assert reading_of(made).directories[0] == tmp_path / "src"


def test_the_reference_trainer_loads_everything_ahead() -> None:
    root = Path(__file__).resolve().parents[2]
    script = root / "examples" / "T5-fsdp" / "fsdp_t5.py"
    modules = preload_of(Program.parse([sys.executable, "-u", str(script)])).modules
    assert {"torch", "msgspec", "fsdpkit.training.checkpoint", "numpy"} <= set(modules)
