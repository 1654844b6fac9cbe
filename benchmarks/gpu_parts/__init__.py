"""Parts of gpu.py. They train the reference trainer's T5, whose modules are no package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "T5-fsdp"))
