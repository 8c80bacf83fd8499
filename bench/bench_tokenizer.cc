// Encoding speed of one tokenizer on one thread: megabytes of text per second. bench_tokenizer.py runs it
// beside the PyPI library `tokenizers` on the same text.
//   bench_tokenizer TOKENIZER_JSON TEXT_FILE [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace {

std::string ReadWholeFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_tokenizer TOKENIZER_JSON TEXT_FILE [ROUNDS]\n");
    return 2;
  }
  const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  auto begin = std::chrono::steady_clock::now();
  const auto tokenizer = attest::Tokenizer::FromTokenizerJson(ReadWholeFile(argv[1]));
  if (!tokenizer.has_value()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  const double load_s = Seconds(begin);
  const std::string text = ReadWholeFile(argv[2]);
  const std::vector<int32_t> ids = (*tokenizer)->Encode(text);
  if ((*tokenizer)->Encode(text) != ids) {
    std::fprintf(stderr, "two encodings of one text differ\n");
    return 1;
  }
  uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a of the ids: the script compares it with the library's
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001B3ULL;
  double best_s = 1e30;
  for (int round = 0; round < rounds; ++round) {
    begin = std::chrono::steady_clock::now();
    const size_t count = (*tokenizer)->Encode(text).size();
    best_s = std::min(best_s, Seconds(begin));
    if (count != ids.size()) return 1;
  }
  std::printf("{\"load_s\": %.3f, \"mb_per_s\": %.2f, \"tokens\": %zu, \"hash\": \"%016llx\"}\n", load_s,
              static_cast<double>(text.size()) / 1e6 / best_s, ids.size(),
              static_cast<unsigned long long>(hash));
  return 0;
}
