"""Pretrained weights into any model: each rank reads its part, what does not fit is named."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from launch import RANKS, findings

from fsdpkit.errors import ConfigError
from fsdpkit.training.weight_files import FileFill, fill_from

sys.path.append(str(RANKS))
from foreign_net import LEFT_OUT, Net, in_files

LARGEST = 4 * 12 * 12
LATE = torch.ones(12, 12)
LATE[-1] = math.nan  # of the last rank's rows alone


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("files")
    in_files(folder / "good")
    in_files(folder / "bad", **{"transformer.layers.1.weight": LATE})
    told = findings(request.param, "fill_from", folder)
    return {"ranks": request.param, **told}


@pytest.mark.parametrize(
    "engine", ["fsdp2", "fsdp2 checkpointed", "fsdp2 hybrid", "fsdp1", "fsdp1 no_shard"]
)
def test_a_sharded_model_has_what_the_files_have(found: dict, engine: str) -> None:
    assert found[engine]["different"] == []


def test_a_rank_reads_its_own_slices_and_holds_one_at_a_time(found: dict) -> None:
    """The largest matrix is 576 bytes in float32; FSDP1 is given a tensor at a time."""
    counters = 8 * (found["ranks"] - 1)  # each rank has one of its own
    (whole,) = {*found["fsdp2 hybrid"]["read"]}
    for engine in ("fsdp2", "fsdp2 checkpointed"):
        assert sum(found[engine]["read"]) == whole + counters, "something was read twice"
        assert max(found[engine]["most"]) <= LARGEST / found["ranks"]
    assert {*found["fsdp1"]["most"]} == {LARGEST}


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_ranks_that_were_seeded_differently_take_rank_0_s_weights_when_asked(
    found: dict, engine: str
) -> None:
    assert found[f"{engine} from rank 0"] == [[]] * found["ranks"]


def without_pooler(name: str) -> str | None:
    return None if name.startswith(LEFT_OUT) else name.removeprefix("transformer.")


def checked(directory: Path, rename=without_pooler, otherwise=None) -> FileFill:
    with torch.device("meta"):
        model = Net()
    fill = fill_from(directory, rename, otherwise)
    fill.check(model)
    return fill


W = "transformer.layers.0.weight"
WRONG: dict[str, tuple[dict, list[str]]] = {
    "missing": ({W: None}, ["layers.0.weight is missing"]),
    "shape": ({W: torch.ones(12, 13)}, [W, "[12, 13]", "the model [12, 12]"]),
    "type": ({W: torch.ones(12, 12, dtype=torch.int64)}, [W, "I64", "torch.float32"]),
    "unexpected": (
        {"transformer.x": torch.ones(2)},
        ["x is not a tensor of the model", "safetensors"],
    ),
    "ties": (  # whichever of the two is in the first file
        {"transformer.embed.weight": torch.ones(7, 12)},
        ["embed.weight", "differs from", "head.weight", "ties"],
    ),
    "float for a counter": ({"transformer.seen": torch.tensor(1.0)}, ["seen", "torch.int64"]),
}


@pytest.mark.parametrize(("changes", "words"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_named_before_anything_is_read(
    tmp_path: Path, changes: dict, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(in_files(tmp_path / "x", **changes))
    for word in [*words, "`rename`"]:
        assert word in str(caught.value)


def test_what_the_files_lack_is_filled_otherwise(tmp_path: Path) -> None:
    directory = in_files(tmp_path / "x", **{W: None})
    fill = checked(directory, otherwise=lambda name, tensor, _: tensor.fill_(5.0))
    tensor = torch.zeros(12, 12)
    fill("layers.0.weight", tensor, torch.default_generator)
    assert (tensor == 5).all()
    assert not fill.has("layers.0.weight")
    fill("layers.1.weight", tensor, torch.default_generator)
    assert torch.equal(tensor, Net.drawn().layers[1].weight)
