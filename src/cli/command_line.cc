#include "cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>

#include "base/version.h"
#include "cache/kv_storage.h"
#include "cli/command_words.h"
#include "cli/flag_checks.h"
#include "cli/nearest.h"

namespace attest {
namespace {

void AddModel(CLI::App& app, ModelFlags& flags) {
  app.add_option(
      "MODEL,--model", flags.model,
      "Folder with safetensors, a .gguf file, or org/name in the local Hugging Face cache; without it the "
      "default model, SmolLM2-135M-Instruct");
}

std::vector<std::string> KvDTypeNames() {
  std::vector<std::string> names{"auto"};
  for (const KvDTypeName& entry : kKvDTypes) names.emplace_back(entry.name);
  return names;
}

void AddCompute(CLI::App& app, ModelFlags& flags) {
  app.add_option("--dtype", flags.dtype, "Type of weights that are not quantised")
      ->transform(Meaning({{"half", "float16"}, {"float", "float32"}}))
      ->check(CLI::IsMember({"auto", "float32", "float16", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--compute", flags.compute,
                 "f32 keeps every product in float32: slow, separates bugs from rounding")
      ->check(CLI::IsMember({"auto", "f32"}))
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", flags.kv_cache_dtype,
                 "Type of the KV cache; auto is bf16, or f32 with --compute f32; fp8 and int8 halve it")
      ->check(CLI::IsMember(KvDTypeNames()))
      ->capture_default_str();
  app.add_flag(
      "--deterministic", flags.deterministic,
      "The same bits for a request alone and in any company: one arithmetic for every batch; slower");
  app.add_option(
      "--attention-backend", flags.attention_backend,
      "Force one attention kernel by name (see `attest kernels`); a name that cannot do a call is an error");
  app.add_option("--block-size", flags.block_size, "Tokens in a KV block")
      ->check(CLI::IsMember({8, 16, 32, 64, 128}))
      ->capture_default_str();
  app.add_option("--threads", flags.threads, "Compute threads; 0 takes every CPU this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void AddEngine(CLI::App& app, ModelFlags& flags) {
  AddCompute(app, flags);
  app.add_option(
         "--max-model-len", flags.max_model_len,
         "Longest prompt plus output in tokens; 0 takes the model's limit, cut to what fits in memory")
      ->transform(ShortNumber())
      ->transform(Meaning({{"auto", "0"}, {"-1", "0"}}))
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--max-num-seqs", flags.max_num_seqs, "Sequences that run at once")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", flags.max_num_batched_tokens, "Token budget of one step")
      ->transform(ShortNumber())
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--long-prefill-token-threshold", flags.long_prefill_token_threshold,
                 "Most tokens of one prompt in a step that others wait behind; 0 takes three quarters of "
                 "what is left of the budget")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--scheduling-policy", flags.scheduling_policy,
                 "fcfs: by arrival; priority: by the request's priority (smaller first), then by arrival")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->capture_default_str();
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", flags.prefix_caching,
               "Keep the KV of finished prompts and reuse what a new one shares with them (default)");
  app.add_option("--kv-cache-gib", flags.kv_cache_gib,
                 "Memory of the KV cache in GiB; 0 sizes it from free memory")
      ->check(NumberIn(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--chat-template", flags.chat_template,
                 "File with a Jinja chat template instead of the model's own")
      ->check(CLI::ExistingFile);
  app.add_option("--tokenizer", flags.tokenizer,
                 "Folder, .gguf file or org/name with the tokenizer and chat template to use instead of the "
                 "model's own");
  app.add_option(
         "--generation-config", flags.generation_config,
         "Where the default sampling comes from: auto (the model), vllm (nowhere), or a folder with a "
         "generation_config.json")
      ->capture_default_str();
  app.add_flag("--trust-remote-code", flags.trust_remote_code,
               "Accepted and without effect: no code of a model is ever run");
  app.add_option("--tensor-parallel-size", flags.tensor_parallel_size,
                 "Ranks that share the model (-tp); 1 in this version")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void AddSampling(CLI::App& app, SamplingFlags& flags) {
  app.add_option("-n,--max-tokens", flags.max_tokens, "Most tokens to generate")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("-t,--temperature", flags.temperature, "0 is greedy")
      ->check(NumberIn(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-p", flags.top_p, "Smallest set of tokens whose mass reaches this")
      ->check(NumberIn(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--top-k", flags.top_k, "Most likely tokens to draw from; 0 is all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--min-p", flags.min_p, "Drop tokens below this share of the best one's probability")
      ->check(NumberIn(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "Same seed, same text; drawn when absent");
}

void AddServe(CLI::App& app, ServeOptions& options) {
  AddModel(app, options.model);
  app.add_option("--host", options.host, "Address to listen on")->check(NotEmpty())->capture_default_str();
  app.add_option("--port", options.port, "Port to listen on; 0 lets the system choose")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option(
         "--max-connections", options.max_connections,
         "Open connections; the next ones get 503. 0 takes what the limit of open files allows, up to 16384")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--max-queued-requests", options.model.max_queued_requests,
                 "Sequences that may wait to be scheduled; the next ones get 503")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--api-key", options.api_keys,
                 "Key that clients must send as a bearer token; may be repeated")
      ->allow_extra_args(false)  // else a MODEL that follows would become a key
      ->check(ApiKey())
      ->envname("ATTEST_API_KEY");
  app.add_option("--served-model-name", options.served_model_names,
                 "Names that clients may ask for; the first is reported")
      ->check(NotEmpty())
      ->expected(1, 16);
  app.add_option("--seed", options.seed, "Seed of requests that send none; drawn per request when absent");
  app.add_option("--metrics-prefix", options.metrics_prefix,
                 "Prefix of the series in /metrics (vllm: for its dashboards)")
      ->check(MetricsPrefix())
      ->capture_default_str();
  app.add_option("--verify-attention", options.verify_attention,
                 "Fraction of attention rows that the oracle recomputes while serving; 0 turns it off")
      ->check(NumberIn(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--on-mismatch", options.on_mismatch,
                 "When a row is wrong: log it, quarantine its kernel and compute again, or stop serving")
      ->check(CLI::IsMember({"log", "quarantine", "stop"}))
      ->capture_default_str();
  app.add_option(
      "--attention-cases", options.attention_cases,
      "Folder for the calls whose rows were wrong (attest replay); attest/cases in the cache folder "
      "by default. They hold keys and values of requests");
  app.add_option("--max-attention-cases", options.max_attention_cases,
                 "Most files in that folder; 0 writes none")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app.add_option("--verify-seed", options.verify_seed, "Which rows are checked; drawn when absent")
      ->check(NoSign());
  app.add_flag("--enable-log-requests,!--disable-log-requests,!--no-enable-log-requests",
               options.log_requests, "Write a line per request (default)");
  app.add_option("--uvicorn-log-level,--log-level", options.log_level, "Least level of what is logged")
      ->check(CLI::IsMember({"critical", "error", "warning", "info", "debug", "trace"}))
      ->capture_default_str();
  app.add_option("--allowed-origins", options.allowed_origins,
                 "Web origin whose pages may read answers (CORS), or *; may be repeated, or a list "
                 "'[\"https://a\"]'; none by default")
      ->allow_extra_args(false);
  app.add_option("--config", options.config_file,
                 "YAML file with flags, one `name: value` per line; flags typed here win");
  app.add_flag("--enable-dev-endpoints", options.dev_endpoints,
               "Serve POST /reset_prefix_cache, /start_profile and /stop_profile");
  app.add_flag("--resolve-only", options.resolve_only,
               "Print the path of the model that would be served and exit; status 3 when the default model "
               "must be fetched");
  AddEngine(app, options.model);
}

void AddExplain(CLI::App& app, ExplainOptions& o, ModelFlags& model) {
  AddModel(app, model);
  app.add_option("--phase", o.phase,
                 "prefill, extend, decode or uniform-decode; computed from the lengths by default")
      ->check(CLI::IsMember({"prefill", "extend", "decode", "uniform-decode"}));
  const auto length = CLI::Range(1, 1 << 30);
  app.add_option("--q-len", o.q_len, "Query rows of each sequence")->check(length)->capture_default_str();
  app.add_option("--kv-len", o.kv_len, "Keys of each sequence, the new ones included")
      ->check(length)
      ->capture_default_str();
  app.add_option("--num-seqs", o.num_seqs, "Sequences in the call")->check(length)->capture_default_str();
  const auto heads = CLI::Range(1, 65536);
  app.add_option("--q-heads", o.q_heads, "Query heads")->check(heads)->capture_default_str();
  app.add_option("--kv-heads", o.kv_heads, "KV heads")->check(heads)->capture_default_str();
  app.add_option("--head-dim", o.head_dim, "Size of a head of Q and K")->check(heads)->capture_default_str();
  app.add_option("--v-head-dim", o.v_head_dim, "Size of a head of V; head_dim by default")->check(heads);
  app.add_option("--q-dtype", o.q_dtype, "f32, bf16 or f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  app.add_option("--kv-dtype", o.kv_dtype, "Type of K and V")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2", "int8"}))
      ->capture_default_str();
  app.add_option("--layout", o.layout, "Where K and V lie")
      ->check(CLI::IsMember({"paged-hnd", "paged-nhd", "contiguous"}))
      ->capture_default_str();
  app.add_option("--block-size", o.block_size, "Tokens in a KV block")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--scale", o.scale, "Softmax scale; 1/sqrt(head_dim) by default");
  app.add_flag("--non-causal", o.non_causal, "No causal mask");
  app.add_option("--window-left", o.window_left, "Keys left of the query that stay visible")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--window-right", o.window_right, "Keys right of the query that stay visible")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--chunk", o.chunk, "Local attention in chunks of this many tokens")->check(length);
  app.add_option("--sink-tokens", o.sink_tokens, "First keys exempt from the left window")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--softcap", o.softcap, "Cap of the scores; 0 is off")
      ->check(NumberIn(0.0, 1e6))
      ->capture_default_str();
  app.add_flag("--alibi", o.alibi, "ALiBi slopes");
  app.add_flag("--sinks", o.sinks, "Sink logits");
  app.add_flag("--k-descale", o.k_descale, "Scales of K");
  app.add_flag("--v-descale", o.v_descale, "Scales of V");
  app.add_flag("--lse", o.lse, "The log-sum-exp is wanted");
  app.add_flag("--precise", o.precise, "Every product in float32 (--compute f32)");
  app.add_option("--attention-backend", o.attention_backend, "Force this kernel");
}

void AddConform(CLI::App& app, ConformOptions& o) {
  app.add_option("--kernel", o.kernels,
                 "Kernel to put on trial, by name (see `attest kernels`); may be repeated; all by default");
  app.add_option("--library", o.libraries,
                 "Shared library with kernels behind attest/conform_kernel.h; may be repeated")
      ->check(CLI::ExistingFile);
  app.add_option("--command", o.commands, "Command that answers trials over its standard input and output");
  CLI::Option* recorded =
      app.add_option(
             "--case", o.recorded,
             "Try this case file (of an earlier failure, or of serve) and nothing else; may be repeated")
          ->check(CLI::ExistingFile);
  app.add_flag("--cases", o.cases, "Only the capability sweep (these four may be combined)");
  app.add_flag("--invariances", o.invariances, "Only what may not change the answer");
  app.add_flag("--bugs", o.bugs, "Only the public bugs, one row each");
  app.add_flag("--random", o.random, "Only random problems");
  app.add_option("--filter", o.filter, "Only trials with this text in their name or capability");
  app.add_flag("--quick", o.quick, "A thinner sweep and fewer random problems");
  app.add_flag("--list", o.list, "Print the trials and run none");
  app.add_option("--seed", o.seed, "Seed of the random problems")->check(NoSign())->capture_default_str();
  app.add_option("--random-cases", o.random_cases, "Random problems; 200 by default, 20 with --quick")
      ->check(CLI::Range(int64_t{0}, int64_t{10000000}));
  app.add_option("--minutes", o.minutes, "Keep drawing random problems until this much time has passed")
      ->check(NumberIn(0.0, 10000.0));
  for (const char* part :
       {"--cases", "--invariances", "--bugs", "--random", "--filter", "--random-cases", "--minutes"})
    recorded->excludes(app.get_option(part));
  app.add_option("--jobs", o.jobs, "Processes that run trials; 0 takes every CPU this process may use")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option("--time-limit", o.time_limit_s, "Seconds after which one trial counts as hanging")
      ->check(NumberIn(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--html", o.html, "Write the report as one HTML page");
  app.add_option("--json", o.json, "Write the report as JSON");
  app.add_option("--junit", o.junit, "Write the report as JUnit XML");
  app.add_option("--failures", o.failures, "Folder for the shrunk cases that fail; '' writes none")
      ->capture_default_str();
}

std::vector<std::string> LongNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The subcommand the user typed, or the program itself.
CLI::App& Deepest(CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.front();
}

// The flags of a command, which are what --config may hold, and which of them the command line gave.
std::vector<KnownFlag> KnownFlags(const CLI::App& app, std::vector<std::string>* given = nullptr) {
  std::vector<KnownFlag> known;
  for (const CLI::Option* option : app.get_options()) {
    KnownFlag flag{.names = option->get_lnames(), .takes_value = option->get_items_expected_max() > 0};
    if (option->get_positional()) flag.names = {"model"};
    if (given != nullptr && option->count() > 0)
      given->insert(given->end(), flag.names.begin(), flag.names.end());
    known.push_back(std::move(flag));
  }
  return known;
}

// `words` (after "serve") with what the file adds to them.
std::variant<std::vector<std::string>, ExitNow> WithConfig(const CLI::App& app, const std::string& file,
                                                           const std::vector<std::string>& words,
                                                           ConfigReader read_config) {
  if (read_config == nullptr) return ExitNow{2, "--config: this build reads no files of flags\n"};
  std::vector<std::string> given;
  const std::vector<KnownFlag> known = KnownFlags(app, &given);
  const auto entries = read_config(file, known);
  if (!entries) return ExitNow{2, entries.error().message + "\n"};
  // The MODEL of the file stands first and its flags last: a flag with several values takes all words that
  // follow.
  std::vector<std::string> all = {"serve"}, flags;
  for (const ConfigEntry& entry : *entries) {
    std::vector<std::string> alone = {"serve"};
    alone.insert(alone.end(), entry.args.begin(), entry.args.end());
    if (const auto parsed = ParseCommandLine(alone); const auto* failed = std::get_if<ExitNow>(&parsed)) {
      return ExitNow{2, fmt::format("{}:{}: {}", file, entry.line, failed->text)};
    }
    if (std::ranges::find(given, entry.key) != given.end()) continue;
    std::vector<std::string>& to = entry.key == "model" ? all : flags;
    to.insert(to.end(), entry.args.begin(), entry.args.end());
  }
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--config") {
      ++i;  // its value
    } else if (!words[i].starts_with("--config=")) {
      all.push_back(words[i]);
    }
  }
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

std::string ExplainExtras(CLI::App& app) {
  CLI::App& at = Deepest(app);
  const std::vector<std::string> extras = app.remaining(true);
  const std::string word = extras.empty() ? "" : extras.front();
  const std::string flag = word.substr(0, word.find('='));
  std::string hint;
  if (flag.starts_with("-")) {
    if (const std::string nearest = Nearest(flag, LongNames(at)); !nearest.empty())
      hint = fmt::format("; did you mean {}?", nearest);
    return fmt::format("unknown flag {}{}\n", flag, hint);
  }
  return fmt::format("unexpected argument '{}'\n", word);
}

}  // namespace

std::variant<Command, ExitNow> ParseCommandLine(const std::vector<std::string>& args,
                                                ConfigReader read_config) {
  CLI::App app{"attest: LLM serving whose attention is checked, not trusted", "attest"};
  app.set_version_flag("--version", std::string("attest ") + kVersion);
  app.require_subcommand(1);

  ServeOptions serve;
  GenerateOptions generate;
  ChatOptions chat;
  TokenizeOptions tokenize;
  InspectOptions inspect;
  KernelsOptions kernels;
  ReplayOptions replay;
  ExplainOptions explain;
  ModelFlags explain_model;
  ConformOptions conform;

  CLI::App* serve_app = app.add_subcommand("serve", "Serve a model over the OpenAI HTTP API");
  AddServe(*serve_app, serve);
  CLI::App* generate_app =
      app.add_subcommand("generate", "Complete one prompt, streaming to standard output");
  AddModel(*generate_app, generate.model);
  generate_app->add_option("-p,--prompt", generate.prompt, "The prompt; standard input by default");
  generate_app->add_flag("--chat", generate.chat, "Wrap the prompt in the model's chat template");
  generate_app->add_flag("--ignore-eos", generate.ignore_eos, "Go on after the model's end token");
  AddSampling(*generate_app, generate.sampling);
  AddEngine(*generate_app, generate.model);
  CLI::App* chat_app = app.add_subcommand("chat", "Talk to a model in the terminal");
  AddModel(*chat_app, chat.model);
  chat_app->add_option("--system", chat.system, "The system message");
  AddSampling(*chat_app, chat.sampling);
  AddEngine(*chat_app, chat.model);
  CLI::App* tokenize_app = app.add_subcommand("tokenize", "Text to token ids, or back");
  AddModel(*tokenize_app, tokenize.model);
  tokenize_app->add_option("-p,--prompt", tokenize.text, "The text; standard input by default");
  tokenize_app->add_option("--decode", tokenize.decode_ids,
                           "Ids, separated by commas or spaces, to turn into text");
  tokenize_app->add_flag("--ids", tokenize.ids_only, "Print the ids alone, on one line");
  tokenize_app->add_flag("--no-special-tokens", tokenize.no_special_tokens, "Add no BOS or EOS");
  CLI::App* inspect_app =
      app.add_subcommand("inspect", "What is in a model's files, and whether it fits in memory");
  AddModel(*inspect_app, inspect.model);
  inspect_app->add_flag("--tensors", inspect.tensors, "List every tensor");
  inspect_app->add_option("--kv-cache-dtype", inspect.model.kv_cache_dtype, "Type of the KV cache")
      ->check(CLI::IsMember(KvDTypeNames()))
      ->capture_default_str();
  CLI::App* kernels_app =
      app.add_subcommand("kernels", "Every attention kernel, its contract, and whether this machine has it");
  kernels_app->add_flag("--markdown", kernels.markdown,
                        "What each kernel supports, as the page docs/support.md");
  kernels_app->add_option("--server", kernels.server,
                          "Also what a running server has quarantined: http://HOST:PORT");
  CLI::App* replay_app = app.add_subcommand(
      "replay", "Compute a recorded attention call again and print where it first differs from the oracle");
  replay_app->add_option("CASE", replay.path, "File that serve or conform wrote")->required();
  replay_app->add_option("--kernel", replay.kernel,
                         "Kernel to run, or all; by default those that computed the case");
  replay_app
      ->add_option("--threads", replay.threads, "Compute threads; 0 takes every CPU this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  CLI::App* explain_app =
      app.add_subcommand("explain", "Which attention kernel runs a call, and why each other does not");
  AddExplain(*explain_app, explain, explain_model);
  CLI::App* conform_app = app.add_subcommand(
      "conform", "Put attention kernels on trial: refused with a reason, or right in every row");
  AddConform(*conform_app, conform);
  for (CLI::App* sub : {serve_app, generate_app, chat_app, tokenize_app, inspect_app, kernels_app, replay_app,
                        explain_app, conform_app}) {
    sub->set_version_flag("--version", std::string("attest ") + kVersion);
  }

  std::vector<KnownFlag> known;
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
    if (!args.empty() && args.front() == names.back()) known = KnownFlags(*sub);
  }
  std::vector<std::string> words = SpellOut(args, known);
  if (!words.empty() && !words.front().starts_with("-")) {
    if (std::find(names.begin(), names.end(), words.front()) == names.end()) {
      const std::string nearest = Nearest(words.front(), names);
      return ExitNow{2, fmt::format("unknown command '{}'{}; commands: {}\n", words.front(),
                                    nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest),
                                    fmt::join(names, ", "))};
    }
  }
  if (const auto wrong = FindFlagWithoutValue(words, known)) return ExitNow{2, *wrong + "\n"};
  const std::vector<std::string> typed = words;
  std::reverse(words.begin(), words.end());  // CLI11 takes them last first
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    return ExitNow{0, Deepest(app).help()};
  } catch (const CLI::CallForAllHelp&) {
    return ExitNow{0, app.help("", CLI::AppFormatMode::All)};
  } catch (const CLI::CallForVersion& version) {
    return ExitNow{0, std::string(version.what()) + "\n"};
  } catch (const CLI::ExtrasError&) {
    return ExitNow{2, ExplainExtras(app)};
  } catch (const CLI::ParseError& error) {
    const std::string name = Deepest(app).get_name();
    return ExitNow{2, fmt::format("{}\nRun attest {}{}--help for the flags.\n", error.what(),
                                  name == "attest" ? "" : name, name == "attest" ? "" : " ")};
  }
  if (serve_app->parsed() && !serve.config_file.empty()) {
    auto all = WithConfig(*serve_app, serve.config_file, typed, read_config);
    if (auto* failed = std::get_if<ExitNow>(&all)) return std::move(*failed);
    return ParseCommandLine(std::get<std::vector<std::string>>(all));
  }
  if (serve_app->parsed() && serve.model.model.empty()) {
    if (const auto wrong = FindSwallowedModel(typed)) return ExitNow{2, *wrong + "\n"};
  }
  serve.allowed_origins = SplitLists(serve.allowed_origins);
  if (serve_app->parsed()) return Command{serve};
  if (generate_app->parsed()) return Command{generate};
  if (chat_app->parsed()) return Command{chat};
  if (tokenize_app->parsed()) return Command{tokenize};
  if (inspect_app->parsed()) return Command{inspect};
  if (explain_app->parsed()) {
    if (explain_app->count("MODEL") > 0) explain.model = explain_model;
    return Command{explain};
  }
  if (conform_app->parsed()) return Command{conform};
  if (replay_app->parsed()) return Command{replay};
  return Command{kernels};
}

}  // namespace attest
