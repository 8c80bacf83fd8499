// The guarded buffers of the conformance suite, under the name that tests use.
#pragma once

#include "conform/guarded_buffer.h"

namespace attest::testing {
using namespace attest::conform;
}
