#include "text/vocabulary.h"

#include <bit>

namespace attest {

void Vocabulary::Append(std::string_view text) {
  texts_ += text;
  begin_.push_back(static_cast<uint32_t>(texts_.size()));
}

void Vocabulary::BuildIndex() {
  slots_.assign(std::bit_ceil(begin_.size() * 2), -1);
  const size_t mask = slots_.size() - 1;
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view text = Text(id);
    if (text.empty()) continue;
    size_t slot = HashText(text) & mask;
    while (slots_[slot] >= 0 && Text(slots_[slot]) != text) slot = (slot + 1) & mask;
    slots_[slot] = id;
  }
}

int32_t Vocabulary::Find(std::string_view text) const {
  if (text.empty() || slots_.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = HashText(text) & mask; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    if (Text(slots_[slot]) == text) return slots_[slot];
  }
  return -1;
}

}  // namespace attest
