// A case captured with --deterministic read back without that property: `attest replay` could then split the
// keys of its rows, which the recorded call had not done.
#include <gtest/gtest.h>

#include "attention/case_file.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

TEST(CaseFileRowwise, ReadsBackAsItWasWritten) {
  AttentionCaseFile c;
  c.spec = {.q_heads = 1, .kv_heads = 1, .head_dim = 1, .v_head_dim = 1, .layout = KvLayout::kContiguous};
  c.q_len = {1};
  c.kv_len = {0};
  c.q.resize(sizeof(float));
  c.kernel = "reference";
  const TempFolder folder;
  for (const bool rowwise : {true, false}) {
    c.spec.rowwise = rowwise;
    const auto path = folder.path() / (rowwise ? "rowwise.case" : "plain.case");
    ASSERT_TRUE(WriteCaseFile(path, c).has_value());
    const auto read = ReadCaseFile(path);
    ASSERT_TRUE(read.has_value()) << read.error().message;
    EXPECT_EQ(read->spec.rowwise, rowwise);
  }
}

}  // namespace
}  // namespace attest
