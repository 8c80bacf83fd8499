// attest tokenize: text to ids, or ids to text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "cli/commands.h"
#include "cli/model_host.h"

namespace attest {
namespace {

Expected<std::vector<int32_t>> ParseIds(const std::string& text, int32_t vocab_size) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(", \t\n", at);
    if (begin == std::string::npos) break;
    const size_t end = std::min(text.find_first_of(", \t\n", begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const bool is_number = word.size() < 10 && word.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || std::stoi(word) >= vocab_size) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("--decode: '{}' is not a token id from 0 to {}", word, vocab_size - 1),
                  "decode");
    }
    ids.push_back(std::stoi(word));
    at = end;
  }
  return ids;
}

// A piece on one line: control bytes escaped, the rest as it is.
std::string Visible(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

Status Tokenize(const TokenizeOptions& options, const HubEnvironment& environment) {
  ATTEST_ASSIGN_OR_RETURN(const std::filesystem::path path, FindModel(options.model.model, environment));
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  ATTEST_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(*checkpoint));
  if (!options.decode_ids.empty()) {
    ATTEST_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                            ParseIds(options.decode_ids, tokenizer->vocab_size()));
    std::puts(tokenizer->Decode(ids, /*skip_special_tokens=*/false).c_str());
    return {};
  }
  std::string text = options.text;
  if (text.empty()) text.assign(std::istreambuf_iterator<char>(std::cin), {});
  const std::vector<int32_t> ids =
      tokenizer->Encode(text, {.add_special_tokens = !options.no_special_tokens});
  if (options.ids_only) {
    std::puts(fmt::format("{}", fmt::join(ids, " ")).c_str());
    return {};
  }
  for (const int32_t id : ids) {
    std::puts(fmt::format("{:>8}  \"{}\"{}", id, Visible(tokenizer->TokenBytes(id)),
                          tokenizer->is_special(id) ? "  special" : "")
                  .c_str());
  }
  std::puts(fmt::format("{} tokens, {} bytes", ids.size(), text.size()).c_str());
  return {};
}

}  // namespace

int RunTokenize(const TokenizeOptions& options, const HubEnvironment& environment) {
  if (const Status status = Tokenize(options, environment); !status) {
    std::fprintf(stderr, "attest tokenize: %s\n", status.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace attest
