"""Which libraries may be loaded before a script runs: those that could not tell the difference."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from fsdpkit.launching.preloading import imports_of, preload_of
from fsdpkit.launching.program import ColdStartError, Program


def program(directory: Path, text: str, others: dict[str, str] | None = None) -> Program:
    """`python -u train.py` with this source, and other files beside it."""
    for name, source in {"train.py": text, **(others or {})}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return Program.parse([sys.executable, "-u", str(directory / "train.py")])


# Each begins a script that imports torch on its next line, and is noticed by no import.
QUIET = [
    "'''Trains a model.'''",
    "from __future__ import annotations",
    "import os, sys\nimport argparse as ap\nparser = ap.ArgumentParser()\nparser.add_argument('n')",
    "import logging\nlog = logging.getLogger(__name__)\nlog.setLevel('INFO')",
    "import warnings\nwarnings.filterwarnings('ignore')",
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
]


@pytest.mark.parametrize("text", QUIET)
def test_what_no_import_notices_comes_before_torch(tmp_path: Path, text: str) -> None:
    made = program(tmp_path, f"{text}\nimport torch\n", {"local.py": "import json\njson.dumps(1)"})
    assert imports_of(made).noticed is None
    assert "torch" in preload_of(made).modules


# Each of these may change what torch finds, or sees, when it is loaded.
NOTICED = [
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
]


@pytest.mark.parametrize("text", NOTICED)
def test_what_torch_s_import_might_notice_makes_a_cold_start(tmp_path: Path, text: str) -> None:
    other = "import os\nos.environ['OMP_NUM_THREADS'] = '4'\n"
    made = program(tmp_path, f"{text}\nimport torch\n", {"local_environment.py": other})
    with pytest.raises(ColdStartError, match=r"\.py:\d+ imports torch after"):
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
        os.environ["HF_HOME"] = "/scratch"
        import msgspec
        """,
    )
    preload = preload_of(made)
    assert "torch.distributed:checkpoint" in preload.modules
    assert "msgspec" not in preload.modules
    assert imports_of(made).later == {"msgspec": "train.py:6"}


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
    imports = imports_of(made)
    assert [name for name in imports.first if name.startswith("torch")] == ["torch"]
    assert imports.noticed == "other.py:2"
    assert imports.later == {"msgspec": "model.py:2", "torch": "train.py:2"}


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
    assert str(tmp_path / "src") in imports_of(made).directories[1].as_posix()


def test_the_reference_trainer_loads_everything_ahead() -> None:
    root = Path(__file__).resolve().parents[2]
    script = root / "examples" / "T5-fsdp" / "fsdp_t5.py"
    modules = preload_of(Program.parse([sys.executable, "-u", str(script)])).modules
    assert {"torch", "msgspec", "fsdpkit.training.checkpoint", "safetensors"} <= set(modules)
