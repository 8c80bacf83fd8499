// Writes K and V rows into pages, converted to the page's dtype: the only code that writes a page.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/paged_kv.h"
#include "tensor/view.h"

namespace attest {

// f32, bf16 and f16 pages. Anything else is refused by name when the routes are checked at load.
[[nodiscard]] bool CanAppendKv(DType dtype);

// Rows [row_begin, row_end) of k and v (innermost stride 1). A negative slot writes nothing. Any thread; rows
// of different threads must not share a slot. REQUIRES: CanAppendKv(kv.dtype); slots in range.
void AppendKvRows(View<const float, 3> k, View<const float, 3> v, std::span<const int64_t> slots,
                  const PagedKv& kv, int64_t row_begin, int64_t row_end);

}  // namespace attest
