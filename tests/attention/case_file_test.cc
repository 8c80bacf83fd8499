// A case file reads back as it was written, and a file that is wrong in any one field is refused by name.
#include "attention/case_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/mapped_file.h"
#include "io/safetensors_writer.h"
#include "tests/support/temp_folder.h"

namespace attest {
namespace {

using ::testing::HasSubstr;

template <class T>
std::vector<T> Counting(int64_t n, T first = T{}) {
  std::vector<T> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<T>(first + static_cast<T>(i % 100)));
  return values;
}
std::vector<std::byte> Bytes(int64_t n) {
  std::vector<std::byte> bytes;
  for (int64_t i = 0; i < n; ++i) bytes.push_back(static_cast<std::byte>(i * 7 + 3));
  return bytes;
}

// Three sequences (one of them without rows) of 2 + 0 + 3 rows and 5 + 9 + 3 keys.
AttentionCaseFile MakeCase(KvLayout layout = KvLayout::kPagedHnd, DType kv_dtype = DType::kBF16) {
  AttentionCaseFile c;
  c.spec = {.q_heads = 4,
            .kv_heads = 2,
            .head_dim = 8,
            .v_head_dim = 6,
            .kv_dtype = kv_dtype,
            .layout = layout,
            .block_size = 4,
            .scale = 0.1f};
  c.q_len = {2, 0, 3};
  c.kv_len = {5, 9, 3};
  const int64_t kv_bytes = BlockBytes(kv_dtype);
  c.q = Bytes(5 * 4 * 8 * 4);
  if (layout == KvLayout::kContiguous) {
    c.k = Bytes(17 * 2 * 8 * kv_bytes);
    c.v = Bytes(17 * 2 * 6 * kv_bytes);
  } else {
    c.num_blocks = 3;
    c.table_width = 2;
    c.k = Bytes(3 * 2 * 4 * 8 * kv_bytes);
    c.v = Bytes(3 * 2 * 4 * 6 * kv_bytes);
    c.block_tables = {2, 0, -1, -1, 1, -1};
  }
  c.out = Bytes(5 * 4 * 6 * 4);
  c.kernel = "prefill=attention_general,decode=reference";
  c.notes = {{"layer", "3"}, {"words", "two\nlines, \"quoted\" and \xc3\xa9"}};
  return c;
}

AttentionCaseFile MakeCaseWithEverything() {
  AttentionCaseFile c = MakeCase();
  AttentionSpec& spec = c.spec;
  spec.q_dtype = DType::kBF16;
  spec.out_dtype = DType::kF16;
  spec.causal = false;
  spec.window_left = 0;
  spec.window_right = 3;
  spec.chunk = 16;
  spec.sink_tokens = 2;
  spec.softcap = 30.5f;
  spec.scale = 0x1.fffffep-4f;
  spec.has_alibi = spec.has_sinks = spec.has_k_descale = spec.has_v_descale = true;
  spec.wants_lse = spec.precise = spec.rowwise = true;
  c.q.resize(c.q.size() / 2);
  c.out.resize(c.out.size() / 2);
  c.alibi_slopes = Counting<float>(4, 0.25f);
  c.sinks = Counting<float>(4, -1.5f);
  c.k_descale = Counting<float>(6, 0.5f);
  c.v_descale = Counting<float>(6, 2.5f);
  return c;
}

void ExpectEqual(const AttentionCaseFile& a, const AttentionCaseFile& b) {
  EXPECT_EQ(a.spec.q_heads, b.spec.q_heads);
  EXPECT_EQ(a.spec.kv_heads, b.spec.kv_heads);
  EXPECT_EQ(a.spec.head_dim, b.spec.head_dim);
  EXPECT_EQ(a.spec.v_head_dim, b.spec.v_head_dim);
  EXPECT_EQ(a.spec.q_dtype, b.spec.q_dtype);
  EXPECT_EQ(a.spec.kv_dtype, b.spec.kv_dtype);
  EXPECT_EQ(a.spec.out_dtype, b.spec.out_dtype);
  EXPECT_EQ(a.spec.layout, b.spec.layout);
  EXPECT_EQ(a.spec.block_size, b.spec.block_size);
  EXPECT_EQ(a.spec.scale, b.spec.scale);
  EXPECT_EQ(a.spec.causal, b.spec.causal);
  EXPECT_EQ(a.spec.window_left, b.spec.window_left);
  EXPECT_EQ(a.spec.window_right, b.spec.window_right);
  EXPECT_EQ(a.spec.chunk, b.spec.chunk);
  EXPECT_EQ(a.spec.sink_tokens, b.spec.sink_tokens);
  EXPECT_EQ(a.spec.softcap, b.spec.softcap);
  EXPECT_EQ(a.spec.has_alibi, b.spec.has_alibi);
  EXPECT_EQ(a.spec.has_sinks, b.spec.has_sinks);
  EXPECT_EQ(a.spec.has_k_descale, b.spec.has_k_descale);
  EXPECT_EQ(a.spec.has_v_descale, b.spec.has_v_descale);
  EXPECT_EQ(a.spec.wants_lse, b.spec.wants_lse);
  EXPECT_EQ(a.spec.precise, b.spec.precise);
  EXPECT_EQ(a.spec.rowwise, b.spec.rowwise);
  EXPECT_EQ(a.q_len, b.q_len);
  EXPECT_EQ(a.kv_len, b.kv_len);
  EXPECT_EQ(a.q, b.q);
  EXPECT_EQ(a.k, b.k);
  EXPECT_EQ(a.v, b.v);
  EXPECT_EQ(a.num_blocks, b.num_blocks);
  EXPECT_EQ(a.table_width, b.table_width);
  EXPECT_EQ(a.block_tables, b.block_tables);
  EXPECT_EQ(a.alibi_slopes, b.alibi_slopes);
  EXPECT_EQ(a.sinks, b.sinks);
  EXPECT_EQ(a.k_descale, b.k_descale);
  EXPECT_EQ(a.v_descale, b.v_descale);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.kernel, b.kernel);
  EXPECT_EQ(a.notes, b.notes);
}

class CaseFile : public ::testing::Test {
 protected:
  void ExpectRoundTrip(const AttentionCaseFile& c) {
    const Status written = WriteCaseFile(path_, c);
    ASSERT_TRUE(written.has_value()) << written.error().message;
    const auto read = ReadCaseFile(path_);
    ASSERT_TRUE(read.has_value()) << read.error().message;
    ExpectEqual(c, *read);
  }

  TempFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "one.case";
};

TEST_F(CaseFile, ReadsBackEqualInEveryLayoutAndElementType) {
  for (const KvLayout layout : {KvLayout::kPagedHnd, KvLayout::kPagedNhd, KvLayout::kContiguous}) {
    for (const DType dtype :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
      SCOPED_TRACE(std::string(KvLayoutName(layout)) + " " + std::string(DTypeName(dtype)));
      ExpectRoundTrip(MakeCase(layout, dtype));
    }
  }
}

TEST_F(CaseFile, ReadsBackEqualWithEveryFeatureAndWithoutAnOutput) {
  ExpectRoundTrip(MakeCaseWithEverything());
  AttentionCaseFile c = MakeCase();
  c.out.clear();
  c.notes.clear();
  c.kernel.clear();
  ExpectRoundTrip(c);
}

TEST_F(CaseFile, OnlyItsOwnerMayReadItBecauseKeysAndValuesTellWhatWasSaid) {
  ASSERT_TRUE(WriteCaseFile(path_, MakeCase()).has_value());
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(CaseFile, AFailedWriteIsAnErrorAndLeavesNothingBehind) {
  const auto absent = folder_.path() / "no" / "one.case";
  const Status written = WriteCaseFile(absent, MakeCase());
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kIo);
  EXPECT_THAT(written.error().message, HasSubstr(absent.string()));
  // A folder of the target's name: everything is written, the rename fails.
  std::filesystem::create_directory(path_);
  std::filesystem::create_directory(path_ / "full");
  EXPECT_FALSE(WriteCaseFile(path_, MakeCase()).has_value());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(CaseFile, AFullDiskIsAnErrorAndLeavesNothingBehind) {
  // The system refuses to let a file grow past this limit, as a full disk would.
  struct Limit {
    Limit() {
      ::getrlimit(RLIMIT_FSIZE, &before);
      rlimit low{.rlim_cur = 100, .rlim_max = before.rlim_max};
      old = std::signal(SIGXFSZ, SIG_IGN);
      ::setrlimit(RLIMIT_FSIZE, &low);
    }
    ~Limit() {
      ::setrlimit(RLIMIT_FSIZE, &before);
      std::signal(SIGXFSZ, old);
    }
    rlimit before{};
    void (*old)(int) = nullptr;
  };
  {
    const Limit limit;
    const Status written = WriteCaseFile(path_, MakeCase());
    ASSERT_FALSE(written.has_value());
    EXPECT_EQ(written.error().code, ErrorCode::kIo);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(CaseFile, WritingRefusesMembersThatContradictTheSpecByName) {
  const std::map<std::string, std::function<void(AttentionCaseFile&)>> changes{
      {"q_heads", [](auto& c) { c.spec.q_heads = 3; }},
      {"head_dim", [](auto& c) { c.spec.head_dim = 1 << 20; }},
      {"q_len", [](auto& c) { c.q_len.clear(); }},
      {"q_len[2]", [](auto& c) { c.q_len[2] = -3; }},
      {"kv_len", [](auto& c) { c.kv_len.pop_back(); }},
      {"kv_len[1]", [](auto& c) { c.kv_len[1] = -1; }},
      {"q", [](auto& c) { c.q.pop_back(); }},
      {"k", [](auto& c) { c.k.push_back({}); }},
      {"v", [](auto& c) { c.v.clear(); }},
      {"num_blocks", [](auto& c) { c.num_blocks = -1; }},
      {"table_width",
       [](auto& c) {
         c.table_width = 1;
         c.block_tables = {0, 1, 2};
       }},
      {"block_tables", [](auto& c) { c.block_tables.pop_back(); }},
      {"block_tables[1]", [](auto& c) { c.block_tables[1] = 3; }},
      {"alibi_slopes", [](auto& c) { c.alibi_slopes = {1, 2, 3, 4}; }},
      {"sinks", [](auto& c) { c.spec.has_sinks = true; }},
      {"k_descale",
       [](auto& c) {
         c.spec.has_k_descale = true;
         c.k_descale = {1};
       }},
      {"v_descale", [](auto& c) { c.v_descale = {1}; }},
      {"out", [](auto& c) { c.out.pop_back(); }},
      {"__metadata__", [](auto& c) { c.notes["words"] = "\xff"; }},
  };
  for (const auto& [field, change] : changes) {
    SCOPED_TRACE(field);
    AttentionCaseFile c = MakeCase();
    change(c);
    const Status written = WriteCaseFile(path_, c);
    ASSERT_FALSE(written.has_value());
    EXPECT_EQ(written.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(written.error().field, field) << written.error().message;
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

// A good file taken apart, so that one thing at a time can be made wrong.
class BadCaseFile : public CaseFile {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WriteCaseFile(path_, MakeCaseWithEverything()).has_value());
    auto mapped = MappedFile::Open(path_);
    ASSERT_TRUE(mapped.has_value());
    mapped_.emplace(std::move(*mapped));
    auto file = ParseSafetensorsFile(mapped_->bytes(), "good");
    ASSERT_TRUE(file.has_value());
    good_ = *file;
  }

  // The error of the good file after `change`.
  Error After(const std::function<void(SafetensorsFile&)>& change) {
    SafetensorsFile file = good_;
    change(file);
    const auto bad_path = folder_.path() / "bad.case";
    const Status written = WriteSafetensors(bad_path, file.entries, file.metadata);
    EXPECT_TRUE(written.has_value()) << written.error().message;
    const auto read = ReadCaseFile(bad_path);
    if (read) return {.code = ErrorCode::kInternal, .message = "it was read", .field = ""};
    EXPECT_THAT(read.error().message, HasSubstr(bad_path.string()));
    EXPECT_EQ(read.error().message.find('\n'), std::string::npos);
    return read.error();
  }
  static SafetensorsEntry& Entry(SafetensorsFile& file, const std::string& name) {
    return *std::ranges::find(file.entries, name, &SafetensorsEntry::name);
  }

  std::optional<MappedFile> mapped_;
  SafetensorsFile good_;
};

TEST_F(BadCaseFile, EveryTextThatIsMissingOrWrongIsNamed) {
  int required = 0;
  for (const auto& [name, text] : good_.metadata) {
    if (name.starts_with("note.") || name == "kernel") continue;
    SCOPED_TRACE(name);
    // The last two are 1 and negative in the 32 bits of what they are read into.
    for (const std::string wrong :
         {"", "x", "-1", "1e99", "99999999999999999999", "4294967297", "2147483648"}) {
      // Floats may be large, and the scale negative.
      const bool is_float = name == "scale" || name == "softcap";
      if (is_float && wrong.size() > 9) continue;
      if (name == "scale" && wrong == "-1") continue;
      const Error error = After([&](SafetensorsFile& file) { file.metadata[name] = wrong; });
      EXPECT_EQ(error.code, ErrorCode::kCorruptFile) << error.message << " with " << wrong;
      EXPECT_EQ(error.field, name) << error.message;
    }
    if (name == "window_left" || name == "window_right" || name == "chunk" || name == "rowwise") continue;
    ++required;
    const Error error = After([&](SafetensorsFile& file) { file.metadata.erase(name); });
    EXPECT_EQ(error.field, name) << error.message;
    EXPECT_THAT(error.message, HasSubstr("absent"));
  }
  EXPECT_EQ(required, 20);
  EXPECT_EQ(After([](SafetensorsFile& file) { file.metadata.erase("kernel"); }).field, "kernel");
  // A misspelt limit must not become no limit.
  const Error unknown = After([](SafetensorsFile& file) { file.metadata["window_lefft"] = "3"; });
  EXPECT_THAT(unknown.message, HasSubstr("'window_lefft'"));
}

TEST_F(BadCaseFile, EveryTensorThatIsMissingOrMisshapenIsNamed) {
  for (const SafetensorsEntry& entry : good_.entries) {
    SCOPED_TRACE(entry.name);
    const auto without = [&](SafetensorsFile& file) {
      std::erase_if(file.entries, [&](const auto& other) { return other.name == entry.name; });
    };
    if (entry.name != "out") {
      EXPECT_EQ(After(without).field, entry.name);
    }
    const Error type = After([&](SafetensorsFile& file) {
      const int bytes = SafetensorsElementBytes(entry.dtype);
      Entry(file, entry.name).dtype = bytes == 4 ? "U32" : bytes == 2 ? "U16" : "U8";
    });
    EXPECT_EQ(type.field, entry.name) << type.message;
    const Error rank = After([&](SafetensorsFile& file) { Entry(file, entry.name).shape.push_back(1); });
    EXPECT_EQ(rank.field, entry.name) << rank.message;
    const Error extent = After([&](SafetensorsFile& file) {
      SafetensorsEntry& changed = Entry(file, entry.name);
      changed.shape.back() = 0;
      changed.data = {};
    });
    EXPECT_NE(extent.code, ErrorCode::kInternal) << extent.message;
  }
  const Error extra = After([&](SafetensorsFile& file) {
    file.entries.push_back(file.entries.front());
    file.entries.back().name = "q2";
  });
  EXPECT_THAT(extra.message, HasSubstr("'q2'"));
}

TEST_F(BadCaseFile, LengthsAndBlockIdsAreCheckedBeforeTheyAreUsed) {
  const std::vector<int32_t> negative{2, 0, -3}, huge{1 << 30, 1 << 30, 1 << 30}, long_keys{5, 9, 9},
      outside{2, 3, -1, -1, 1, -1}, low{2, 0, -2, -1, 1, -1};
  const auto with = [&](const char* name, const std::vector<int32_t>& values) {
    return After([&](SafetensorsFile& file) { Entry(file, name).data = std::as_bytes(std::span(values)); });
  };
  EXPECT_EQ(with("q_len", negative).field, "q_len[2]");
  EXPECT_EQ(with("q_len", huge).field, "q_len");
  EXPECT_EQ(with("kv_len", negative).field, "kv_len[2]");
  EXPECT_EQ(with("kv_len", long_keys).field, "table_width");
  EXPECT_EQ(with("block_tables", outside).field, "block_tables[1]");
  EXPECT_EQ(with("block_tables", low).field, "block_tables[2]");
}

TEST_F(BadCaseFile, IsRefusedWhenCutShortAnywhere) {
  const auto bytes = mapped_->bytes();
  for (size_t size = 0; size < bytes.size(); size += 1 + size / 16) {
    const auto parsed = ParseCaseFile(bytes.first(size), "cut");
    ASSERT_FALSE(parsed.has_value()) << size;
    EXPECT_THAT(parsed.error().message, HasSubstr("cut"));
  }
}

TEST_F(CaseFile, AnAbsentFileIsNotFound) {
  const auto read = ReadCaseFile(path_);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace attest
