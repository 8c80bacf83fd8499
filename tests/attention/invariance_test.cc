// What may not change the answer: the functions of conform/invariances.h, one test each, on every kernel of
// this CPU by forced name.
#include <gtest/gtest.h>

#include "conform/invariances.h"

namespace attest::testing {
namespace {

class InvarianceTest : public ::testing::Test {
 public:
  explicit InvarianceTest(const conform::Invariance& invariance) : invariance_(invariance) {}
  void TestBody() override {
    int ran = 0;
    for (const auto& subject : conform::RunnableSubjects()) {
      conform::Probe probe(*subject);
      invariance_.run(probe);
      EXPECT_FALSE(probe.failure()) << subject->name() << ": " << *probe.failure();
      ran += probe.runs() > 0 ? 1 : 0;
    }
    EXPECT_GE(ran, 2) << "no kernel but the reference computes it";
  }

 private:
  const conform::Invariance& invariance_;
};

const bool kInvariancesRegistered = [] {
  for (const conform::Invariance& invariance : conform::Invariances()) {
    ::testing::RegisterTest(invariance.suite, invariance.name, nullptr, nullptr, __FILE__, __LINE__,
                            [&]() -> ::testing::Test* { return new InvarianceTest(invariance); });
  }
  return true;
}();

TEST(InvarianceList, IsRegistered) {
  EXPECT_TRUE(kInvariancesRegistered);
  EXPECT_GE(conform::Invariances().size(), 7u);
}

}  // namespace
}  // namespace attest::testing
