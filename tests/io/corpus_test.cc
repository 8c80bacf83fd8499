// Every file of tests/data/io/corpus (seeds) and tests/data/io/crashes (inputs that once hurt a reader)
// against every reader this project ships, one second each (D10: a check in one reader does not protect
// another).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "io/checkpoint.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "tests/io/io_test_support.h"
#include "tests/support/cpu_time.h"

namespace attest {
namespace {

std::set<std::filesystem::path> CorpusFiles() {
  std::set<std::filesystem::path> files;
  for (const char* folder : {"corpus", "crashes"}) {
    const auto path = std::filesystem::path(ATTEST_SOURCE_DIR) / "tests" / "data" / "io" / folder;
    if (!std::filesystem::exists(path)) continue;  // no input has hurt a reader yet
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file()) files.insert(entry.path());
    }
  }
  return files;
}

template <class Read>
void ExpectQuick(const char* reader, Read read) {
  const double seconds = ThreadCpuSeconds([&] {
    const auto result = read();
    if (!result) {
      EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
    }
  });
  EXPECT_LT(seconds, 1.0) << reader;
}

TEST(Corpus, NoReaderIsHurtByAnyFile) {
  const auto files = CorpusFiles();
  ASSERT_FALSE(files.empty());
  for (const auto& path : files) {
    SCOPED_TRACE(path.filename().string());
    std::ifstream stream(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    ExpectQuick("gguf", [&] { return GgufFile::Parse(Bytes(bytes), "corpus"); });
    ExpectQuick("safetensors", [&] { return ParseSafetensors(Bytes(bytes), "corpus"); });
    ExpectQuick("index", [&] { return ParseSafetensorsIndex(bytes, "corpus"); });
    ExpectQuick("checkpoint", [&] { return Checkpoint::Open(path); });
  }
}

// The seeds are of use to a fuzzer only while they get past the first checks.
TEST(Corpus, SeedsNamedGoodAreAccepted) {
  int good = 0;
  for (const auto& path : CorpusFiles()) {
    if (!path.filename().string().starts_with("good_")) continue;
    ++good;
    std::ifstream stream(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (path.extension() == ".gguf") {
      EXPECT_TRUE(GgufFile::Parse(Bytes(bytes), "corpus")) << path;
    } else if (path.extension() == ".json") {
      EXPECT_TRUE(ParseSafetensorsIndex(bytes, "corpus")) << path;
    } else {
      EXPECT_TRUE(ParseSafetensors(Bytes(bytes), "corpus")) << path;
    }
  }
  EXPECT_GE(good, 5);
}

}  // namespace
}  // namespace attest
