// Public bug reports of attention kernels: the functions of conform/bug_cases.h, one test each, on every
// kernel of this CPU by forced name.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "conform/bug_cases.h"

namespace attest::testing {
namespace {

class BugCaseTest : public ::testing::Test {
 public:
  explicit BugCaseTest(const conform::BugCase& bug) : bug_(bug) {}
  void TestBody() override {
    int ran = 0;
    for (const auto& subject : conform::RunnableSubjects()) {
      conform::Probe probe(*subject);
      bug_.run(probe);
      EXPECT_FALSE(probe.failure()) << subject->name() << ": " << *probe.failure();
      ran += probe.runs() > 0 ? 1 : 0;
    }
    EXPECT_GE(ran, 2) << "no kernel but the reference computes it";
  }

 private:
  const conform::BugCase& bug_;
};

const bool kBugCasesRegistered = [] {
  for (const conform::BugCase& bug : conform::BugCases()) {
    ::testing::RegisterTest("BugCases", conform::BugCaseName(bug).c_str(), nullptr, nullptr, __FILE__,
                            __LINE__, [&bug]() -> ::testing::Test* { return new BugCaseTest(bug); });
  }
  return true;
}();

TEST(BugCaseList, HoldsAllFiftyFiveReportsOfSilentWrongAttention) {
  ASSERT_TRUE(kBugCasesRegistered);
  std::set<std::string> ids, names;
  for (const conform::BugCase& bug : conform::BugCases()) {
    ids.insert(bug.id);
    EXPECT_TRUE(names.insert(conform::BugCaseName(bug)).second)
        << conform::BugCaseName(bug) << " is listed twice";
  }
  for (int i = 1; i <= 55; ++i) {
    const std::string id = std::string("A") + (i < 10 ? "0" : "") + std::to_string(i);
    EXPECT_TRUE(ids.contains(id)) << id << " is missing";
  }
  EXPECT_EQ(ids.size(), 55u);
}

}  // namespace
}  // namespace attest::testing
