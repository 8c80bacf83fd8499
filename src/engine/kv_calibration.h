// Where the scales of an int8 KV cache come from: the model reads a text once, and the largest magnitude that
// each KV head of each layer gives K and V there becomes its range. One scale per layer and KV head, fixed
// before the first request, so that blocks can be shared and a request's numbers do not depend on who came
// before.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/thread_team.h"
#include "cache/kv_storage.h"
#include "model/model.h"

namespace attest {

// Values beyond what the text showed still fit up to this factor; beyond it they saturate.
inline constexpr float kKvScaleHeadroom = 1.25f;
// Tokens of the text that are read; more change no maximum of the models we have looked at by 10 %.
inline constexpr int32_t kMaxCalibrationTokens = 512;

// scale = headroom * max |x| / 127, at least the smallest normal number. Runs one step over a KV cache of its
// own in f32. REQUIRES: `tokens` are ids of the model, at least one; the team is idle. kInternal when the
// model gives a number that is not finite.
[[nodiscard]] Expected<KvScales> CalibrateKvScales(Model& model, std::span<const int32_t> tokens,
                                                   ThreadTeam& team);

}  // namespace attest
