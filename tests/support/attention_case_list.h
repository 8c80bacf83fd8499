// The one case list, under the name that tests use.
#pragma once

#include "conform/case_list.h"

namespace attest::testing {
using namespace attest::conform;
}
