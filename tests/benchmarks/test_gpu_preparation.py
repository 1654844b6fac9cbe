"""What the GPU benchmark needs of a machine and carries there, and the roofline, known answers."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts import needs, roofline, wheels
from benchmarks.gpu_parts.roofline import ATTENTION, H100, PRODUCTS, RESULT, Ceiling, Work

MODULES = {name: {"version": "1.0"} for name in (*needs.REQUIRED, *needs.OPTIONAL)}
FOUND = {
    "python": [3, 12, 1],
    "modules": {"torch": {"version": "2.13.0+cu130"}, **MODULES},
    "gpu": {
        "name": "NVIDIA H100 80GB HBM3",
        "devices": 1,
        "capability": "9.0",
        "built_for_it": True,
        "free_bytes": 79 * 2**30,
        "total_bytes": 80 * 2**30,
    },
    "compiler": "/usr/bin/cc",
    "headers": True,
    "scratch": "/tmp",
    "disk_bytes": 10**12,
    "host_bytes": 10**12,
}


def modules(**changed: dict) -> dict:
    return {"modules": {**FOUND["modules"], **changed}}


def test_a_machine_that_has_everything_lacks_nothing() -> None:
    assert needs.gaps(FOUND, dry=False) == []


@pytest.mark.parametrize(
    ("changed", "said", "stops"),
    [
        ({"gpu": None}, "torch sees no GPU", True),
        ({"python": [3, 9, 2]}, "Python is older", True),
        (modules(torch={"version": "2.10.1"}), "older than 2.11", True),
        (modules(torch={"error": "no"}), "torch cannot", True),
        (modules(msgspec={"error": "no"}), "--wheels", True),
        (modules(triton={"error": "no"}), "triton cannot", False),
        ({"gpu": {**FOUND["gpu"], "built_for_it": False}}, "no code for NVIDIA H100", True),
        ({"gpu": {**FOUND["gpu"], "free_bytes": 2**30}}, "only 1.0 of 80.0 GiB", False),
        ({"compiler": None}, "no C compiler", False),
        ({"disk_bytes": 10**9}, "1 GB of disk", False),
    ],
)  # fmt: skip
def test_each_thing_that_is_missing_is_named(changed: dict, said: str, stops: bool) -> None:
    (gap,) = needs.gaps({**FOUND, **changed}, dry=False)
    assert said in gap.what
    assert gap.stops is stops


def test_all_that_is_missing_is_said_at_once_what_stops_everything_first() -> None:
    found = {**FOUND, "gpu": None, "compiler": None, "disk_bytes": 0}
    assert [gap.stops for gap in needs.gaps(found, dry=False)] == [True, False, False]
    assert needs.gaps(found, dry=True) == []


def test_where_something_stops_everything_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(found: dict, *words: str) -> int:
        monkeypatch.setattr(needs, "facts", lambda *_: found)
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "out"), *words])
        return gpu.main()

    assert call({**FOUND, "gpu": None, "compiler": None}) == 2
    said = capsys.readouterr().out
    assert "MISSING: torch sees no GPU" in said
    assert "without: no C compiler" in said
    assert call(FOUND, "--check") == 0
    assert "nothing is missing" in capsys.readouterr().out
    assert call(FOUND, "--check", "--wheels", str(tmp_path)) == 2
    assert "no wheel for Python" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("click-8.5.1-py3-none-any.whl", True),
        ("shellingham-1.5.4-py2.py3-none-any.whl", True),
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("msgspec-0.22.0-cp311-cp311-manylinux2014_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312t-manylinux2014_x86_64.whl", False),
        ("tokenizers-0.23.3-cp310-abi3-manylinux_2_17_x86_64.whl", True),
        ("tokenizers-0.23.3-cp313-abi3-manylinux_2_17_x86_64.whl", False),
        ("tokenizers-0.23.3-cp310-abi3-manylinux_2_17_aarch64.whl", False),
        ("psutil-7.2.2-cp36-abi3-macosx_11_0_x86_64.whl", False),
        ("notes.txt", False),
    ],
)
def test_a_wheel_is_taken_where_its_tags_fit(name: str, fits: bool) -> None:
    assert wheels.fits(name, (3, 12), "x86_64") is fits


def folder_of(tmp_path: Path, *names: str) -> Path:
    """A folder of wheels with a module each, and its manifest."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in names:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(f"{name.partition('-')[0]}.py", "here = True\n")
    digests = {name: wheels._digest(folder / name) for name in names}
    (folder / wheels.MANIFEST).write_text(json.dumps(digests))
    return folder


def test_carried_wheels_are_unpacked_once_and_only_those_for_this_python(tmp_path: Path) -> None:
    here = f"cp3{sys.version_info[1]}"
    other = f"b-1-cp37-cp37-manylinux_2_17_{wheels.platform.machine()}.whl"
    own = f"c-1-{here}-{here}-manylinux_2_17_{wheels.platform.machine()}.whl"
    folder = folder_of(tmp_path, "a-1-py3-none-any.whl", other, own)
    assert wheels.carried(folder, tmp_path / "to") == ["a", "c"]
    assert sorted(f.name for f in (tmp_path / "to").glob("*.py")) == ["a.py", "c.py"]
    (tmp_path / "to" / "a.py").unlink()
    wheels.carried(folder, tmp_path / "to")
    assert not (tmp_path / "to" / "a.py").exists()


def test_numpy_stays_the_machines_own(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a-1-py3-none-any.whl", "numpy-9-py3-none-any.whl")
    assert wheels.carried(folder, tmp_path / "to") == ["a"]


def test_a_wheel_that_was_changed_or_writes_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "a-1-py3-none-any.whl", "b-1-py3-none-any.whl")
    with (folder / "a-1-py3-none-any.whl").open("ab") as file:
        file.write(b"more")
    with zipfile.ZipFile(folder / "b-1-py3-none-any.whl", "a") as archive:
        archive.writestr("../outside.py", "")
    digests = json.loads((folder / wheels.MANIFEST).read_text())
    name = "b-1-py3-none-any.whl"
    digests[name] = wheels._digest(folder / name)
    (folder / wheels.MANIFEST).write_text(json.dumps(digests))
    with pytest.raises(wheels.WheelError, match=r"a-1.* is not the file[\s\S]*outside\.py"):
        wheels.carried(folder, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_folder_without_wheels_for_this_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wheels.WheelError, match="no wheel for Python"):
        wheels.carried(folder_of(tmp_path, "a-1-cp37-cp37-any.whl"), tmp_path / "to")


def test_work_takes_as_long_as_its_operations_or_its_bytes() -> None:
    ceiling = Ceiling("x", 100.0, 50.0, 10.0, 0.5, 0.8, ())
    assert Work(PRODUCTS, "a", flops=200).seconds(ceiling) == 2
    assert Work(ATTENTION, "a", flops=200).seconds(ceiling) == 4
    assert Work(PRODUCTS, "a", flops=200, bytes=50).seconds(ceiling) == 5
    usual = ceiling.attainable()
    assert Work(PRODUCTS, "a", flops=200).seconds(usual) == 4
    assert Work(PRODUCTS, "a", bytes=50).seconds(usual) == 6.25


@pytest.mark.torch
def test_the_roofline_counts_all_operations_and_parameters_of_the_model() -> None:
    import torch

    from benchmarks.gpu_parts.trial import T5, plan

    for preset, words in (
        ("t5-v1.1-large", ()),
        ("t5-v1.1-base", ("model.d_kv=32", "model.num_layers=3")),
        ("t5-base", ()),
    ):
        task = plan(preset, *words, dry=False)
        with torch.device("meta"):
            model = T5(task.config)
        count = sum(p.numel() for p in model.parameters())
        assert roofline.parameter_count(task.config) == count
        work = roofline.step_work(task.config, 8, *task.lengths)
        products = sum(one.flops for one in work if one.kind == PRODUCTS)
        attention = sum(one.flops for one in work if one.kind == ATTENTION)
        # Seven products of attention, of which MFU counts six.
        assert products + attention * 6 // 7 == 8 * task.flops()


@pytest.mark.torch
def test_the_committed_roofline_is_what_the_code_computes() -> None:
    from benchmarks.gpu_parts import trial  # noqa: F401, adds the example to the path

    computed = roofline.roofline(roofline.t5_large(), H100, 64, 512, 128)
    assert json.loads(RESULT.read_text("utf-8")) == json.loads(json.dumps(computed))
    assert sum(part["least_s"] for part in computed["parts"]) == computed["step"]["least_s"]
    assert computed["mfu"]["attainable_s"] < computed["mfu"]["least_s"] < 1


def test_the_measured_column_is_empty_until_there_is_a_profile(tmp_path: Path) -> None:
    result = json.loads(RESULT.read_text("utf-8"))
    empty = roofline.table(result, roofline.newest_profile(tmp_path))
    assert "Measured: not measured." in empty
    assert all(line.rstrip().endswith("|  |") for line in empty.splitlines()[2:] if line[:1] == "|")
    kernels = {
        "part": "profile",
        "name": "kernels",
        "status": "measured",
        "rows": 32,
        "by_kind_s": {PRODUCTS: 0.05, "other": 0.001},
        "wall_s": 0.1,
        "idle_s": 0.002,
    }
    measured = {"device": "NVIDIA H100 80GB HBM3", "date": "2026-01-02"}
    (tmp_path / "gpu-x.json").write_text(json.dumps({"measured": measured, "rows": [kernels]}))
    on_cpu = {"measured": {**measured, "device": "CPU"}, "rows": [{**kernels, "rows": 1}]}
    (tmp_path / "gpu-y.json").write_text(json.dumps(on_cpu))
    text = roofline.table(result, roofline.newest_profile(tmp_path))
    # For 64 rows, of which the profile had half.
    assert "| **matrix products** | 89.7 |  | 90.7 ms | 129.6 ms | 70 % | 100.0 ms |" in text
    assert "| other |  |  |  |  |  | 2.0 ms |" in text
    assert "Measured: 320.0." in text
