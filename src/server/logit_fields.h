// The fields of a request that change its logits: penalties, biases, and ids or words that may or may not
// come. Any thread.
#pragma once

#include "base/error.h"
#include "engine/request.h"
#include "server/call_limits.h"
#include "server/json_fields.h"

namespace attest {

// Fills what is given and leaves the rest. Errors name the field.
Status ReadLogitFields(const JsonFields& fields, const CallLimits& limits, SamplingParams& sampling);

}  // namespace attest
