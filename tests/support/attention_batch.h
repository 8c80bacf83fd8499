// The batches of the conformance suite, under the name that tests use.
#pragma once

#include "conform/batch.h"
#include "tests/support/guarded_buffer.h"
