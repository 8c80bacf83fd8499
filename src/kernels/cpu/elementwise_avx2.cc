#include <cstdint>

#include "kernels/cpu/elementwise_ops.h"

namespace attest {
namespace {
#include "kernels/cpu/elementwise_rows.inc"
}  // namespace

const ElementwiseOps kElementwiseAvx2 = kRowOps;

}  // namespace attest
