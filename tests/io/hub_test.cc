#include <gtest/gtest.h>

#include <chrono>

#include "io/checkpoint.h"
#include "tests/io/io_test_support.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRepo = "models--org--name";

HubEnvironment CacheAt(const fs::path& path) {
  HubEnvironment environment;
  environment.hf_hub_cache = path.string();
  return environment;
}

TEST(ResolveModel, ExistingPathsAreUsedAsTheyAre) {
  const TempFolder folder;
  folder.Write("hf/model.safetensors", "");
  const auto file = folder.Write("x.gguf", "");
  EXPECT_EQ(ResolveModel((folder.path() / "hf").string(), {}), folder.path() / "hf");
  EXPECT_EQ(ResolveModel(file.string(), {}), file);
}

TEST(ResolveModel, AFolderWithOneGgufIsThatFile) {
  const TempFolder folder;
  folder.Write("one/x.gguf", "");
  EXPECT_EQ(ResolveModel((folder.path() / "one").string(), {}), folder.path() / "one" / "x.gguf");
  folder.Write("split/x-00001-of-00002.gguf", "");
  folder.Write("split/x-00002-of-00002.gguf", "");
  EXPECT_EQ(ResolveModel((folder.path() / "split").string(), {}),
            folder.path() / "split" / "x-00001-of-00002.gguf");
  folder.Write("two/x-Q4_0.gguf", "");
  folder.Write("two/x-Q8_0.gguf", "");
  ExpectError(ResolveModel((folder.path() / "two").string(), {}),
              "holds 2 GGUF models, name one of them: x-Q4_0.gguf, x-Q8_0.gguf");
  folder.Write("none/config.json", "");
  ExpectError(ResolveModel((folder.path() / "none").string(), {}),
              "holds neither .safetensors nor .gguf files");
}

TEST(ResolveModel, FollowsTheMainRef) {
  const TempFolder cache;
  cache.Write(fs::path(kRepo) / "refs/main", "abc123\n");
  cache.Write(fs::path(kRepo) / "snapshots/abc123/model.safetensors", "");
  cache.Write(fs::path(kRepo) / "snapshots/def456/model.safetensors", "");
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(cache.path() / kRepo / "snapshots/abc123", now - std::chrono::hours(1));
  EXPECT_EQ(ResolveModel("org/name", CacheAt(cache.path())), cache.path() / kRepo / "snapshots/abc123");
}

TEST(ResolveModel, TakesTheNewestSnapshotWithoutAMainRef) {
  const TempFolder cache;
  cache.Write(fs::path(kRepo) / "snapshots/old/model.safetensors", "");
  cache.Write(fs::path(kRepo) / "snapshots/new/m.gguf", "");
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(cache.path() / kRepo / "snapshots/old", now - std::chrono::hours(2));
  fs::last_write_time(cache.path() / kRepo / "snapshots/new", now);
  const fs::path expected = cache.path() / kRepo / "snapshots/new/m.gguf";
  EXPECT_EQ(ResolveModel("org/name", CacheAt(cache.path())), expected);
  cache.Write(fs::path(kRepo) / "refs/main", "gone");  // its snapshot was deleted
  EXPECT_EQ(ResolveModel("org/name", CacheAt(cache.path())), expected);
  cache.Write(fs::path(kRepo) / "refs/main", "../../../somewhere");
  EXPECT_EQ(ResolveModel("org/name", CacheAt(cache.path())), expected);
}

TEST(ResolveModel, TheFirstVariableThatIsSetDecides) {
  const TempFolder root;
  const std::string hub_cache = (root.path() / "a").string(), hf_home = (root.path() / "b").string(),
                    xdg = (root.path() / "c").string(), home = (root.path() / "d").string();
  const std::string tail = std::string(kRepo) + "/snapshots/s/model.safetensors";
  root.Write("a/" + tail, "");
  root.Write("b/hub/" + tail, "");
  root.Write("c/huggingface/hub/" + tail, "");
  root.Write("d/.cache/huggingface/hub/" + tail, "");
  const fs::path snapshot = fs::path(kRepo) / "snapshots/s";
  EXPECT_EQ(ResolveModel("org/name", {hub_cache, hf_home, xdg, home}), root.path() / "a" / snapshot);
  EXPECT_EQ(ResolveModel("org/name", {"", hf_home, xdg, home}), root.path() / "b/hub" / snapshot);
  EXPECT_EQ(ResolveModel("org/name", {"", "", xdg, home}), root.path() / "c/huggingface/hub" / snapshot);
  EXPECT_EQ(ResolveModel("org/name", {"", "", "", home}),
            root.path() / "d/.cache/huggingface/hub" / snapshot);
  EXPECT_EQ(ResolveModel("org/name", {"", "~/.cache/huggingface", "", home}),
            root.path() / "d/.cache/huggingface/hub" / snapshot);
}

TEST(ResolveModel, AnAbsentModelNamesEveryPlaceAndTheDownload) {
  const TempFolder cache;
  const auto absent = ResolveModel("org/name", CacheAt(cache.path()));
  ExpectError(absent, "model 'org/name' not found; looked at: " + fs::absolute("org/name").string());
  ExpectError(absent, (cache.path() / kRepo).string() + " (no such folder, from HF_HUB_CACHE)");
  ExpectError(absent, "hf download org/name");
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(absent.error().field, "model");
  fs::create_directories(cache.path() / kRepo);
  ExpectError(ResolveModel("org/name", CacheAt(cache.path())), "holds no snapshot");
  ExpectError(ResolveModel("org/name", {}), "HOME are all unset");
  cache.Write(fs::path(kRepo) / "snapshots/s/config.json", "{}");  // a download that stopped early
  ExpectError(ResolveModel("org/name", CacheAt(cache.path())), "hf download org/name");
}

TEST(ResolveModel, NamesThatCouldLeaveTheCacheAreNotSearched) {
  const TempFolder cache;
  for (const char* model :
       {"../name", "org/..", "org/name/more", "name", "org/", "/absent", "org/na me", "org/a\nb"}) {
    ExpectError(ResolveModel(model, CacheAt(cache.path())), "not of the form org/name");
  }
  EXPECT_EQ(ResolveModel("", {}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace attest
