"""T5's architecture, as far as it can be told without another implementation at hand."""

from __future__ import annotations

import math

import pytest
import torch
from attention import ATTEND
from model import RMSNorm, T5Config, init_parameter, products
from small_t5 import V1_0, V1_1, batch_of, build, loss_and_gradients
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

SAMPLES = (([5, 9, 30, 1], [7, 1]), ([8, 1], [4, 3, 22, 17, 1]))


@pytest.mark.parametrize("family", [V1_0, V1_1], ids=["v1.0", "v1.1"])
def test_more_padding_changes_neither_loss_nor_gradient(family):
    model = build(**family)
    loss, gradients = loss_and_gradients(model, batch_of(*SAMPLES))
    padded_loss, padded_gradients = loss_and_gradients(model, batch_of(*SAMPLES, extra=7))
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_gradients, gradients, atol=1e-5, rtol=1e-4)


def test_a_target_token_sees_the_tokens_before_it_only():
    model = build(**V1_1)
    source, mask, labels = batch_of(*SAMPLES)
    changed = labels.clone()
    changed[1, 3] = 11
    scores, others = model(source, mask, labels), model(source, mask, changed)
    torch.testing.assert_close(scores[1, :4], others[1, :4])  # label 3 is input 4
    assert not torch.allclose(scores[1, 4], others[1, 4])


@pytest.mark.parametrize("attention", ["sdpa", "math"])
@pytest.mark.parametrize("segmented", [False, True])
def test_a_row_of_padding_only_gives_finite_scores_and_no_gradient(attention, segmented):
    model = build(attention, **V1_1)
    source, mask, labels = batch_of(([], []), extra=3)
    segments = (torch.zeros_like(source), torch.zeros_like(labels)) if segmented else None
    scores = model(source, mask, labels, segments)
    assert torch.isfinite(scores).all()
    cross_entropy(
        scores.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
    ).backward()
    assert all((p.grad == 0).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("tied", "given", "scaled"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_whether_outputs_are_scaled_is_told_by_its_own_key_before_the_tie(tied, given, scaled):
    family = {"tie_word_embeddings": tied, "scale_decoder_outputs": given}
    model = build(**family)
    x = torch.randn(1, 2, 12)
    weight = (model.shared if tied else model.lm_head).weight
    torch.testing.assert_close(model.head(x), x @ weight.T / (math.sqrt(12) if scaled else 1))


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("shared.weight", 1.0),
        ("lm_head.weight", 1.0),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", (512 * 64) ** -0.5),
        ("encoder.block.0.layer.0.SelfAttention.k.weight", 512**-0.5),
        ("encoder.block.0.layer.0.SelfAttention.o.weight", 384**-0.5),
        ("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 512**-0.5),
        ("encoder.block.0.layer.1.DenseReluDense.wo.weight", 1024**-0.5),
    ],
)
def test_initial_values_have_t5_s_spread(name, std):
    config = T5Config(
        vocab_size=300, d_model=512, d_ff=1024, d_kv=64, num_heads=6,
        num_layers=1, num_decoder_layers=1,
    )  # fmt: skip
    tensor = torch.empty(300, 512)
    init_parameter(config, name, tensor, torch.Generator().manual_seed(1))
    assert float(tensor.std()) == pytest.approx(std, rel=0.02)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("family", [V1_0, V1_1], ids=["v1.0", "v1.1"])
def test_all_kernels_give_the_same_scores_and_gradients(family):
    batch = batch_of(*SAMPLES, extra=2)
    scores, gradients = {}, {}
    for attention in ("sdpa", "math"):
        model = build(attention, **family)
        scores[attention] = model(*batch).detach()
        gradients[attention] = loss_and_gradients(model, batch)[1]
    torch.testing.assert_close(scores["math"], scores["sdpa"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients["math"], gradients["sdpa"], atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        flex = build("flex", **family)(*batch)
    torch.testing.assert_close(flex, scores["sdpa"], atol=1e-5, rtol=1e-5)


PARTS = [([5, 9, 30, 1], [7, 1]), ([8, 1], [4, 3, 22, 17, 1]), ([6, 7, 1], [9, 9, 1])]


def packed() -> tuple:
    """Row 0: parts 0 and 1, then padding; row 1: part 2 alone."""
    source, mask, labels = batch_of(
        (PARTS[0][0] + PARTS[1][0], PARTS[0][1] + PARTS[1][1]), PARTS[2], extra=2
    )
    of_source, of_target = torch.zeros_like(source), torch.zeros_like(labels)
    of_source[0, :4], of_source[0, 4:6], of_source[1, :3] = 1, 2, 1
    of_target[0, :2], of_target[0, 2:7], of_target[1, :3] = 1, 2, 1
    return source, mask, labels, (of_source, of_target)


def test_packed_samples_have_the_gradients_of_the_samples_alone():
    model = build(**V1_1)

    def gradients(*batch) -> list[torch.Tensor]:
        model.zero_grad()
        scores, labels = model(*batch).flatten(0, 1), batch[2].flatten()
        cross_entropy(scores, labels, ignore_index=-100, reduction="sum").backward()
        return [p.grad.clone() for p in model.parameters()]

    together, apart = gradients(*packed()), gradients(*batch_of(*PARTS))
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "math"])
def test_biases_reach_every_kernel_in_the_queries_type(attention, monkeypatch):
    """Also where the residual stream is wider: kernels have misread a float32 bias."""
    original, seen = ATTEND[attention], []

    def recording(q, k, v, bias, dropout):
        seen.append((q.dtype, bias.dtype))
        return original(q, k, v, bias, dropout)

    monkeypatch.setitem(ATTEND, attention, recording)
    model = build(attention, **V1_1)
    for name, parameter in model.named_parameters():
        if not name.startswith("shared"):
            parameter.data = parameter.data.bfloat16()
    assert torch.isfinite(model(*batch_of(*SAMPLES, ([], [])))).all()
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    assert len(seen) == 2 + 2 * 3


@pytest.mark.parametrize("family", [V1_1, V1_0], ids=["gated", "relu"])
def test_compiled_projections_are_one_product_with_the_numbers_of_each(family):
    """Of queries, keys and values, and of the gated inputs; in float64, so that nothing is lost."""
    batch = batch_of(*SAMPLES)
    model = build(**family).double()
    expected = loss_and_gradients(model, batch)
    counts = []

    def count(graph: torch.fx.GraphModule, inputs: list) -> torch.fx.GraphModule:
        # linear is a C function, which a graph names; joined, it is in a graph of its own
        graphs = [each.graph for each in graph.modules() if isinstance(each, torch.fx.GraphModule)]
        targets = [str(node.target) for each in graphs for node in each.nodes]
        counts.append(sum("linear" in target for target in targets))
        return graph

    for block in [*model.encoder.block, *model.decoder.block]:
        block.layers = torch.compile(block.layers, backend=count, fullgraph=True)
    found = loss_and_gradients(model, batch)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert set(found[1]) == {name for name, _ in model.named_parameters()}
    # qkv, o, wi, wo; in the decoder q, kv and o of the memory besides.
    assert counts == [4, 7]


def test_weights_that_were_joined_for_a_product_are_not_kept_until_backward():
    """A copy in every block would be as large as what FSDP has gathered, and is to free."""
    layers = [nn.Linear(8, width, bias=False) for width in (3, 5, 7)]
    x = torch.randn(2, 6, 8, requires_grad=True)
    together = torch.compile(
        lambda x: sum(part.sum() for part in products(x, *layers)),
        backend="aot_eager_decomp_partition",
        fullgraph=True,
    )
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        together(x).backward()
    assert {(3, 8), (5, 8), (7, 8)} <= {*kept}
    assert (3 + 5 + 7, 8) not in kept


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1), (torch.bfloat16, 30), (torch.float16, 300)]
)
def test_the_norm_is_as_exact_as_if_written_out(dtype, scale):
    """Compared with float64: Hugging Face's form rounds twice, this one not more often."""
    torch.manual_seed(0)
    norm = RMSNorm(96, 1e-6).to(dtype)
    norm.weight.data.normal_(1, 0.1)
    x = (scale * torch.randn(50, 96)).to(dtype).requires_grad_()
    towards = torch.randn(50, 96, dtype=torch.float64)

    def written_out(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        normed = x * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * normed.to(weight.dtype)

    def outcome(function, *inputs: torch.Tensor) -> list[torch.Tensor]:
        leaves = [t.detach().clone().requires_grad_() for t in inputs]
        result = function(*leaves)
        (result.double() * towards).sum().backward()
        return [t.double() for t in (result.detach(), *(leaf.grad for leaf in leaves))]

    truth = outcome(written_out, x.double(), norm.weight.double())
    ours = outcome(
        lambda x, weight: functional_call(norm, {"weight": weight}, (x,)), x, norm.weight
    )
    theirs = outcome(written_out, x, norm.weight)
    for true, own, other in zip(truth, ours, theirs, strict=True):
        assert (own - true).norm() <= 1.05 * (other - true).norm() + 1e-6 * true.norm()
    assert norm(x).dtype is dtype
