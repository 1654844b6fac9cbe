"""The chunked loss: the whole one's numbers, never all scores in memory."""

from __future__ import annotations

import functools

import loss as loss_module
import pytest
import torch
import torch.nn.functional as F
from launch import ranks_found
from loss import FEWEST_CHUNKS, IGNORE, MOST_SCORES, _chunks, chunked, whole
from small_t5 import V1_0, V1_1, batch_of, build
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

ROWS, WIDTH, VOCABULARY = 200, 8, 96
SCORES = ROWS * VOCABULARY
FACTOR = 2 / 4096  # ranks / target tokens, as a trainer weighs the sum


def task(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """What the head scores [2, ROWS / 2, WIDTH], its weight, labels of which some are padding."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, ROWS // 2, WIDTH, generator=generator)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator)
    labels = torch.randint(VOCABULARY // 4, (2, ROWS // 2), generator=generator)
    labels[1, -30:] = IGNORE
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def plain(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return whole(F.linear(x, weight), labels)


def compiled(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return chunked(x, weight, labels, compiled=True)


WAYS = {"chunked": chunked, "whole": plain, "compiled": compiled}


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled here is not made into kernels, which takes long on a CPU."""
    traced = functools.lru_cache(
        lambda: torch.compile(loss_module.score_gradient, backend="aot_eager")
    )
    monkeypatch.setattr(loss_module, "compiled_score_gradient", traced)


def loss_and_gradients(way: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    x, weight, labels = task(dtype)
    loss = WAYS[way](x, weight, labels)
    (loss * FACTOR).backward()
    return [loss.detach(), x.grad, weight.grad]


@pytest.mark.parametrize("way", ["chunked", "compiled"])
def test_chunked_is_whole(way: str) -> None:
    torch.testing.assert_close(
        loss_and_gradients(way), loss_and_gradients("whole"), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("way", ["chunked", "compiled"])
def test_rows_without_a_target_add_neither_loss_nor_gradient(way: str) -> None:
    x, weight, labels = task()
    loss = WAYS[way](x, weight, torch.full_like(labels, IGNORE))
    loss.backward()
    assert loss == 0
    assert not x.grad.any()
    assert not weight.grad.any()


class Peak(TorchDispatchMode):
    """The most bytes of what was computed while it was on that were alive at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                reference = StorageWeakRef(tensor.untyped_storage())
                self.storages[reference.cdata] = (reference, tensor.untyped_storage().nbytes())
        self.storages = {k: v for k, v in self.storages.items() if not v[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.storages.values()))
        return result


def peak_bytes(way: str) -> int:
    x, weight, labels = task()
    with Peak() as peak:
        WAYS[way](x, weight, labels).backward()
    return peak.bytes


def test_never_are_all_scores_in_memory() -> None:
    of_all = 4 * SCORES
    assert peak_bytes("whole") >= 2 * of_all
    # Three tensors of a chunk's scores; gradients of x (twice) and weight (thrice).
    assert peak_bytes("chunked") < of_all
    assert peak_bytes("chunked") < 3.1 * of_all / FEWEST_CHUNKS + 4 * WIDTH * (
        2 * ROWS + 3 * VOCABULARY
    )


@pytest.mark.parametrize(
    ("rows", "vocabulary", "chunk"),
    [
        (800, 100, 100),
        (801, 100, 101),
        (3, 100, 1),
        (100_000, 1 << 20, 16),
        (8, 1 << 30, 1),
        (8192, 32_128, 512),
    ],
)
def test_a_chunk_is_an_eighth_of_the_rows_or_whole_tiles_that_the_vocabulary_allows(
    rows: int, vocabulary: int, chunk: int
) -> None:
    with torch.device("meta"):
        x, labels = torch.empty(rows, 4), torch.empty(rows)
        parts = _chunks(x, torch.empty(vocabulary, 4), labels)
    assert len(parts[0][0]) == chunk
    assert chunk == 1 or chunk * vocabulary <= MOST_SCORES
    assert sum(len(part) for part, _ in parts) == sum(len(wanted) for _, wanted in parts) == rows


@pytest.mark.parametrize("family", [V1_1, V1_0], ids=["untied", "tied and scaled"])
def test_the_model_gives_scores_or_either_loss(family: dict) -> None:
    batch = batch_of(([5, 6, 7], [8, 9]), ([5, 6], [7, 8, 9, 10, 1]))
    found = {}
    for way in WAYS:
        model = build(**family)
        model.compiled_loss = way == "compiled"
        loss = model(*batch, loss="whole" if way == "whole" else "chunked")
        loss.backward()
        torch.testing.assert_close(loss, whole(model(*batch), batch[2]), rtol=1e-6, atol=0)
        found[way] = {name: p.grad for name, p in model.named_parameters()}
    for way in ("chunked", "compiled"):
        for name, gradient in found["whole"].items():
            # Rounding goes by the largest number: a small one is what large ones leave over.
            scale = float(gradient.abs().max())
            torch.testing.assert_close(found[way][name], gradient, rtol=0, atol=1e-5 * scale)


on_ranks = ranks_found(2, "chunked")


@pytest.mark.torch
@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
@pytest.mark.parametrize(
    "case", ["untied", "head by name", "tied, in two parts", "checkpointed, in four parts"]
)
def test_training_goes_the_same_way(on_ranks: dict, engine: str, case: str) -> None:
    found = on_ranks[engine][case]
    assert found["chunked"]["losses"] == pytest.approx(found["whole"]["losses"], rel=1e-6)
    assert found["chunked"]["norms"] == pytest.approx(found["whole"]["norms"], rel=1e-5)
    assert found["farthest weight"] < 1e-6
    assert found["whole"]["losses"][0] != found["whole"]["losses"][-1]
