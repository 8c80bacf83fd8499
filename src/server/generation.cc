#include "server/generation.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <utility>

#include "server/api_error.h"

namespace attest {
namespace {

constexpr std::ptrdiff_t kPrimingTokens = 256;

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Generation::Generation(const Rooms& rooms, GenerationId id, ExchangeId exchange, GenerationCall call,
                       std::string_view request_id)
    : rooms_(rooms),
      id_(id),
      exchange_(exchange),
      call_(std::move(call)),
      writer_(call_.is_chat, call_.stream, request_id, call_.model, UnixSeconds()),
      logprobs_writer_(rooms.tokenizer, call_.tokens_as_ids) {}

Status Generation::Start() {
  choices_.reserve(call_.prompts.size() * static_cast<size_t>(call_.best_of));
  prompt_scores_.resize(call_.prompts.size());
  for (size_t p = 0; p < call_.prompts.size(); ++p) {
    std::vector<int32_t>& prompt = call_.prompts[p];
    usage_.prompt_tokens += static_cast<int64_t>(prompt.size());
    // The decoder needs the end of the prompt only: whether text precedes, and the bytes of an open code
    // point. A model's vocabulary may be padded beyond the tokenizer's: such ids have no text.
    std::vector<int32_t> readable;
    std::copy_if(prompt.end() - std::min(std::ssize(prompt), kPrimingTokens), prompt.end(),
                 std::back_inserter(readable), [this](int32_t id) { return IsDecodable(id); });
    const int32_t first_token = prompt.front();
    for (int32_t sample = 0; sample < call_.best_of; ++sample) {
      const auto index = static_cast<int32_t>(choices_.size());
      SamplingParams sampling = SamplingOf(call_, p, sample, rooms_.engine.options().max_model_len);
      const bool is_last = sample + 1 == call_.best_of;
      auto id = rooms_.engine.Submit({.prompt = is_last ? std::move(prompt) : prompt,
                                      .sampling = std::move(sampling),
                                      .eos_ids = rooms_.eos_ids,
                                      .sink = rooms_.tokens.MakeSink(id_, index, !call_.stream),
                                      .priority = call_.priority,
                                      .cache_salt = call_.cache_salt});
      if (!id) {  // the request is refused as a whole: its answer is counted, and no sequence
        for (const Choice& choice : choices_) rooms_.engine.Abort(choice.engine_id);
        return std::unexpected(std::move(id).error());
      }
      choices_.push_back(
          {.engine_id = *id,
           .prompt_end = call_.stream ? std::vector<int32_t>{} : readable,
           .decoder = IncrementalDecoder(rooms_.tokenizer, call_.skip_special_tokens, readable),
           .stops = StopMatcher(call_.stop, call_.keep_stop_text),
           .result = {},
           .logged = {},
           .text_offset = FirstOffset(p),
           .prompt = p,
           .first_token = first_token});
      ++num_running_;
    }
  }
  rooms_.metrics.ObserveRequest(call_.n);
  if (call_.stream) {
    rooms_.http.StartStream(exchange_,
                            {.content_type = "text/event-stream; charset=utf-8",
                             .body = {},
                             .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
  }
  // With logprobs the echo waits for those of the prompt.
  if (call_.echo && !call_.sampling.logprobs) {
    for (size_t i = 0; i < choices_.size(); ++i) Echo(static_cast<int32_t>(i));
  }
  return {};
}

void Generation::StopRunning(FinishReason reason) {
  for (Choice& choice : choices_) {
    if (!choice.is_running) continue;
    choice.is_running = false;
    rooms_.engine.Abort(choice.engine_id);
    rooms_.metrics.CountFinished(reason);
  }
  num_running_ = 0;
}

void Generation::Apply(TokenEvent& event) {
  const int32_t index = event.choice;
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (!choice.is_running) return;  // said after its stop string
  if (event.error == nullptr && WaitsForScores(index)) {
    choice.held.push_back(std::move(event));
    return;
  }
  if (event.retract) {
    Retract(index);
  } else if (event.cached) {
    // The choices of one prompt share it, and usage counts it once.
    if (IsScorer(index)) usage_.cached_tokens += *event.cached;
  } else if (event.prompt_logprobs) {
    OnPromptLogprobs(index, std::move(*event.prompt_logprobs));
  } else if (event.token) {
    OnToken(index, *event.token, std::move(event.logprobs));
  } else if (event.error != nullptr) {
    FailAll(*event.error);
  } else {
    StopReason stop_reason;
    if (event.stop_token && call_.only_prompt) {
      event.reason = FinishReason::kLength;
    } else if (event.stop_token) {
      if (event.logprobs) {
        Count(choice, *event.logprobs);
        Log(choice, *event.stop_token, std::move(*event.logprobs), /*is_shown=*/false);
      }
      ++choice.num_tokens;
      ++usage_.completion_tokens;  // generated, though it is no part of the text unless that was asked for
      if (std::ranges::count(call_.sampling.stop_token_ids, *event.stop_token) != 0) {
        stop_reason = *event.stop_token;
      }
      if (call_.keep_stop_text) Show(index, *event.stop_token);
    }
    if (choice.is_running) Finish(index, *event.reason, std::move(stop_reason));
    if (IsScorer(index)) ReleaseHeld(choice.prompt);  // where it ended before it had the scores
  }
}

// Nothing of the choice was shown (answers that stream cannot be retracted): it begins anew.
void Generation::Retract(int32_t index) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  usage_.completion_tokens -= choice.num_tokens;
  choice.num_tokens = 0;
  choice.decoder = IncrementalDecoder(rooms_.tokenizer, call_.skip_special_tokens, choice.prompt_end);
  choice.stops = StopMatcher(call_.stop, call_.keep_stop_text);
  choice.result.text.clear();
  choice.logged.clear();
  choice.logprob_sum = 0;
  choice.num_logprobs = 0;
  choice.text_offset = FirstOffset(choice.prompt);
  if (IsScorer(index)) prompt_scores_[choice.prompt].reset();  // they come again
  if (call_.echo && !call_.sampling.logprobs) Echo(index);     // else with the prompt's logprobs
  if (prompt_scores_[choice.prompt]) TakeScores(index);
}

bool Generation::WaitsForScores(int32_t index) const {
  const size_t prompt = choices_[static_cast<size_t>(index)].prompt;
  return call_.sampling.prompt_logprobs && !IsScorer(index) && !prompt_scores_[prompt] &&
         choices_[ScorerOf(prompt)].is_running;
}

void Generation::ReleaseHeld(size_t prompt) {
  const size_t first = ScorerOf(prompt);
  for (size_t i = first + 1; i < first + static_cast<size_t>(call_.best_of); ++i) {
    std::vector<TokenEvent> held = std::exchange(choices_[i].held, {});
    for (TokenEvent& event : held) Apply(event);
  }
}

void Generation::Count(Choice& choice, const TokenLogprobs& scores) {
  choice.logprob_sum += double{scores.logprob};
  ++choice.num_logprobs;
}

// One token of the text, in order. `is_shown`: the text contains it.
void Generation::Log(Choice& choice, int32_t token, std::optional<TokenLogprobs> scores, bool is_shown) {
  if (!call_.sampling.logprobs) return;  // they were asked for to choose the best
  choice.logged.push_back({.token = token, .text_offset = choice.text_offset, .scores = std::move(scores)});
  if (is_shown) choice.text_offset += logprobs_writer_.NumCodePoints(token);
}

void Generation::OnPromptLogprobs(int32_t index, std::vector<TokenLogprobs> scores) {
  const size_t prompt = choices_[static_cast<size_t>(index)].prompt;
  prompt_scores_[prompt] = std::move(scores);
  for (int32_t i = index; i < index + call_.best_of; ++i) {
    const Choice& choice = choices_[static_cast<size_t>(i)];
    if (!choice.is_running) continue;
    // One that had the scores of a prompt that was then found wrong begins anew, too.
    if (i != index && choice.took_scores) {
      Retract(i);
    } else {
      TakeScores(i);
    }
  }
  ReleaseHeld(prompt);
}

void Generation::TakeScores(int32_t index) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  const std::vector<TokenLogprobs>& scores = *prompt_scores_[choice.prompt];
  choice.took_scores = true;
  if (!call_.echo || !call_.sampling.logprobs) return;
  // A BOS that the tokenizer put before a text is no part of the text.
  const std::optional<int32_t> bos = rooms_.tokenizer.bos_id();
  const bool shows_first = choice.first_token != bos ||
                           call_.echo_texts[choice.prompt].starts_with(rooms_.tokenizer.TokenBytes(*bos));
  Log(choice, choice.first_token, std::nullopt, shows_first);
  for (const TokenLogprobs& score : scores) Log(choice, score.token, score, /*is_shown=*/true);
  Echo(index);
}

void Generation::Echo(int32_t index) {
  Emit(index, call_.echo_texts[choices_[static_cast<size_t>(index)].prompt]);
}

std::string Generation::TakeLogprobs(Choice& choice) {
  if (!call_.sampling.logprobs) return "null";
  const std::vector<LoggedToken> logged = std::exchange(choice.logged, {});
  return call_.is_chat ? logprobs_writer_.Chat(logged, *call_.sampling.logprobs)
                       : logprobs_writer_.Completion(logged, *call_.sampling.logprobs);
}

void Generation::OnToken(int32_t index, int32_t token, std::unique_ptr<TokenLogprobs> logprobs) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (call_.only_prompt) return;
  if (logprobs) {
    Count(choice, *logprobs);
    const bool is_shown =
        IsDecodable(token) && !(call_.skip_special_tokens && rooms_.tokenizer.is_special(token));
    Log(choice, token, std::move(*logprobs), is_shown);
  }
  ++choice.num_tokens;
  ++usage_.completion_tokens;
  Show(index, token);
}

// The text of the token that came last, unless it may become a stop string; ends the choice at one.
void Generation::Show(int32_t index, int32_t token) {
  if (!IsDecodable(token)) return;
  Choice& choice = choices_[static_cast<size_t>(index)];
  const std::string piece = choice.decoder.Append(token);
  if (choice.num_tokens <= call_.sampling.min_tokens) return Emit(index, choice.stops.Skip(piece));
  StopMatcher::Step step = choice.stops.Append(piece);
  Emit(index, step.text);
  if (!step.match) return;
  rooms_.engine.EndText(choice.engine_id);
  Finish(index, FinishReason::kStop, std::move(*step.match));
}

void Generation::Emit(int32_t index, std::string_view text) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (!call_.stream) {
    choice.result.text += text;
    return;
  }
  if (call_.is_chat && !choice.has_spoken) {
    choice.has_spoken = true;
    rooms_.http.Send(exchange_, writer_.RoleEvent(index, ChunkUsage()));
  }
  if (text.empty()) return;
  rooms_.http.Send(exchange_, writer_.TextEvent(index, text, TakeLogprobs(choice), ChunkUsage()));
}

// Ends one choice. What the decoder and the matcher still hold is shown, unless a stop string cut it off.
void Generation::Finish(int32_t index, FinishReason reason, StopReason stop_reason) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (!std::holds_alternative<std::string>(stop_reason)) {
    // The last bytes may complete a stop string too.
    const std::string rest = choice.decoder.Finish();
    StopMatcher::Step step = choice.num_tokens <= call_.sampling.min_tokens
                                 ? StopMatcher::Step{.text = choice.stops.Skip(rest), .match = std::nullopt}
                                 : choice.stops.Append(rest);
    if (step.match) {
      reason = FinishReason::kStop;
      stop_reason = std::move(*step.match);
    } else {
      step.text += choice.stops.Finish();
    }
    Emit(index, step.text);
  }
  choice.is_running = false;
  --num_running_;
  rooms_.metrics.CountFinished(reason);
  if (call_.stream) {
    if (!choice.logged.empty()) {  // of tokens without text: an end token, a stop string cut off
      rooms_.http.Send(exchange_, writer_.TextEvent(index, "", TakeLogprobs(choice), ChunkUsage()));
    }
    rooms_.http.Send(exchange_, writer_.FinishEvent(index, reason, stop_reason, ChunkUsage()));
  }
  choice.result.finish = reason;
  choice.result.stop_reason = std::move(stop_reason);
  if (num_running_ == 0) EndAnswer();
}

void Generation::FailAll(const Error& error) {
  StopRunning(FinishReason::kError);
  // A kernel that refuses is not the fault of a request that was accepted.
  const int status = error.code == ErrorCode::kUnsupported ? 500 : HttpStatusOf(error.code);
  if (!call_.stream) {
    rooms_.metrics.CountResponse(status);
    rooms_.http.Respond(
        exchange_, {.status = status, .body = ErrorBody(status, error.message, error.field), .headers = {}});
    return;
  }
  rooms_.http.Send(exchange_, ResponseWriter::ErrorEvent(status, error.message));
  rooms_.http.Send(exchange_, ResponseWriter::kDone);
  rooms_.http.EndStream(exchange_);
}

// The samples of a prompt that are its choices: all in order, or the n of the best mean logprob, best first.
std::vector<size_t> Generation::BestOf(size_t prompt) const {
  std::vector<size_t> indices(static_cast<size_t>(call_.best_of));
  std::iota(indices.begin(), indices.end(), ScorerOf(prompt));
  if (call_.best_of == call_.n) return indices;
  const auto mean = [this](size_t index) {
    const Choice& choice = choices_[index];
    return choice.num_logprobs == 0 ? 0.0 : choice.logprob_sum / choice.num_logprobs;
  };
  std::ranges::stable_sort(indices, std::ranges::greater{}, mean);
  indices.resize(static_cast<size_t>(call_.n));
  return indices;
}

void Generation::EndAnswer() {
  if (!call_.stream) {
    std::vector<std::string> prompt_logprobs(call_.prompts.size());  // the choices of a prompt share its text
    std::vector<ChoiceResult> results;
    results.reserve(call_.prompts.size() * static_cast<size_t>(call_.n));
    for (size_t prompt = 0; prompt < call_.prompts.size(); ++prompt) {
      if (call_.prompt_logprobs && prompt_scores_[prompt]) {
        prompt_logprobs[prompt] = logprobs_writer_.Prompt(*prompt_scores_[prompt], *call_.prompt_logprobs);
      }
      for (const size_t index : BestOf(prompt)) {
        Choice& choice = choices_[index];
        choice.result.logprobs = TakeLogprobs(choice);
        choice.result.prompt_logprobs = prompt_logprobs[prompt];
        results.push_back(std::move(choice.result));
      }
    }
    rooms_.http.Respond(exchange_, {.body = writer_.Response(results, usage_), .headers = {}});
    return;
  }
  if (call_.include_usage) rooms_.http.Send(exchange_, writer_.UsageEvent(usage_));
  rooms_.http.Send(exchange_, ResponseWriter::kDone);
  rooms_.http.EndStream(exchange_);
}

}  // namespace attest
