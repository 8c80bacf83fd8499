// What the user asked for, one plain struct per command. Filled by cli/command_line.cc, read by the commands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "attention/sentinel.h"

namespace attest {

// Which model, and how it is computed: shared by every command that loads one.
struct ModelFlags {
  std::string model;                    // folder, .gguf file or org/name; "" is the default model
  std::string dtype = "auto";           // auto, float32, float16, bfloat16: of weights that are not quantised
  std::string compute = "auto";         // auto, f32
  std::string kv_cache_dtype = "auto";  // auto or a name of kKvDTypes
  std::string attention_backend;        // kernel name; "" lets the contract choose
  std::string chat_template;            // file with a Jinja template instead of the model's own
  std::string tokenizer;                // folder, .gguf file or org/name; "" is the model's own
  std::string generation_config = "auto";  // auto, vllm, or a folder with a generation_config.json
  bool trust_remote_code = false;          // without effect, said so at start
  int block_size = 16;                     // tokens
  int threads = 0;                         // 0: one per CPU this process may use
  int32_t max_model_len = 0;               // tokens; 0: the model's own limit, cut to what fits in memory
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 2048;
  int32_t long_prefill_token_threshold = 0;  // tokens; 0: three quarters of what a step has left
  std::string scheduling_policy = "fcfs";    // fcfs, priority
  int32_t max_queued_requests = 4096;        // sequences that wait; one more is refused
  bool prefix_caching = true;
  bool deterministic = false;
  double kv_cache_gib = 0.0;  // 0: sized from free memory
  int tensor_parallel_size = 1;
};

struct ServeOptions {
  ModelFlags model;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> api_keys;
  std::vector<std::string> served_model_names;
  std::string metrics_prefix = "attest:";
  std::optional<int64_t> seed;
  int64_t max_connections = 0;  // 0: as many as the limit of open files allows, up to 16,384
  bool log_requests = true;
  std::string log_level = "info";            // critical, error, warning, info, debug, trace
  std::vector<std::string> allowed_origins;  // CORS; none: no such headers
  std::string config_file;                   // read while parsing; here for the flags' sake
  bool resolve_only = false;
  bool dev_endpoints = false;
  double verify_attention = kDefaultVerifyRate;  // fraction of rows; 0: off
  std::string on_mismatch = "quarantine";        // log, quarantine, stop
  std::string attention_cases;                   // folder; "" is the default one
  int max_attention_cases = kDefaultMaxCases;    // files in the folder
  std::optional<uint64_t> verify_seed;           // which rows; drawn when absent
};

struct SamplingFlags {
  int32_t max_tokens = 256;
  double temperature = 0.0;
  double top_p = 1.0;
  int32_t top_k = 0;
  double min_p = 0.0;
  std::optional<int64_t> seed;
};

struct GenerateOptions {
  ModelFlags model;
  SamplingFlags sampling;
  std::string prompt;  // "" reads standard input
  bool chat = false;   // wrap the prompt in the model's chat template
  bool ignore_eos = false;
};

struct ChatOptions {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
};

struct TokenizeOptions {
  ModelFlags model;
  std::string text;        // "" reads standard input
  std::string decode_ids;  // "1,2,3": decode instead
  bool ids_only = false;
  bool no_special_tokens = false;
};

struct InspectOptions {
  ModelFlags model;
  bool tensors = false;  // list every tensor
};

struct KernelsOptions {
  bool markdown = false;  // the page docs/support.md instead of the list
  std::string server;     // http://HOST:PORT: what that server has quarantined
};

struct ReplayOptions {
  std::string path;
  std::string kernel;  // a name, or "all"; "": those that the case names
  int threads = 0;
};

struct ExplainOptions {
  std::optional<ModelFlags> model;  // the model's own heads and dtypes instead of the flags below
  std::string phase;  // prefill, extend, decode, uniform-decode; "" computes it from the lengths
  int32_t q_len = 1;
  int32_t kv_len = 1024;
  int32_t num_seqs = 1;
  int q_heads = 8, kv_heads = 8, head_dim = 128;
  std::optional<int> v_head_dim;
  std::string q_dtype = "f32";
  std::string kv_dtype = "bf16";
  std::string layout = "paged-hnd";  // paged-hnd, paged-nhd, contiguous
  int block_size = 16;
  std::optional<double> scale;
  bool non_causal = false;
  std::optional<int32_t> window_left, window_right, chunk;
  int32_t sink_tokens = 0;
  double softcap = 0.0;
  bool alibi = false, sinks = false, k_descale = false, v_descale = false, lse = false, precise = false;
  std::string attention_backend;
};

struct ConformOptions {
  std::vector<std::string> kernels;    // of ours, by name; none of anything: all that this CPU runs
  std::vector<std::string> libraries;  // shared libraries behind attest/conform_kernel.h
  std::vector<std::string> commands;   // processes that answer over pipes
  std::vector<std::string> recorded;   // case files to try in place of the suite
  bool cases = false, invariances = false, bugs = false, random = false;  // none set: all
  bool quick = false;
  bool list = false;
  std::string filter;
  uint64_t seed = 1;
  std::optional<int64_t> random_cases;
  double minutes = 0;
  int jobs = 0;  // processes; 0: one per CPU this process may use
  double time_limit_s = 20;
  std::string html, json, junit;
  std::string failures = "conform-failures";  // folder; "" writes no case files
};

using Command = std::variant<ServeOptions, GenerateOptions, ChatOptions, TokenizeOptions, InspectOptions,
                             KernelsOptions, ReplayOptions, ExplainOptions, ConformOptions>;

}  // namespace attest
