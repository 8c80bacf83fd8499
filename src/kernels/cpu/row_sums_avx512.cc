#include <cstdint>

#include "kernels/cpu/row_sums.h"

namespace attest {
namespace {
#include "kernels/cpu/row_sums.inc"
}  // namespace

const RowSumOps kRowSumsAvx512 = kOps;

}  // namespace attest
