// The sizes that requests are held to, in one place: the parsers refuse what is larger, and the API's
// description (openapi.h) tells them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attest {

inline constexpr size_t kMaxPrompts = 1024;
inline constexpr int64_t kMaxChoicesPerPrompt = 128;
inline constexpr size_t kMaxSampleBytes = size_t{256} << 20;  // of all samples, before they say anything
inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 1024;  // what a stop string may make the stream hold back
inline constexpr size_t kMaxSaltBytes = 1024;
inline constexpr size_t kMaxStopTokenIds = 1024;
inline constexpr size_t kMaxBadWords = 128;
inline constexpr size_t kMaxBadWordBytes = 1024;
inline constexpr double kMaxBias = 100.0;
inline constexpr size_t kMaxMessages = 16384;
inline constexpr size_t kMaxContentParts = 4096;
// Of what a chat template sees beside roles and texts: keys of one object, which it searches one after the
// other, and values in all.
inline constexpr size_t kMaxTemplateKeys = 256;
inline constexpr size_t kMaxTemplateValues = size_t{1} << 18;
inline constexpr size_t kMaxListedIds = size_t{1} << 22;  // of a prompt, before the context is looked at

}  // namespace attest
