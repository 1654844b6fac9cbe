// An operator of torch with a kernel for all devices and no fake version: on tensors without values
// it reads at address 0.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

torch::stable::Tensor twice(torch::stable::Tensor x) {
    torch::stable::Tensor y = torch::stable::empty_like(x);
    const float *in = static_cast<const float *>(x.data_ptr());
    float *out = static_cast<float *>(y.data_ptr());
    for (int64_t at = 0; at < x.numel(); at++) out[at] = 2 * in[at];
    return y;
}

STABLE_TORCH_LIBRARY(fsdpkit_tests_cpp, m) { m.def("twice(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(fsdpkit_tests_cpp, CompositeExplicitAutograd, m) {
    m.impl("twice", TORCH_BOX(&twice));
}
