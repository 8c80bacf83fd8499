// What each sampling field of a request does to its text, over HTTP and the real engine: every test fails
// where the field, or how it meets another one, is ignored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/support/toy_server_fixture.h"

namespace attest::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

// The model's logits lie between -4 and 4 over 258 ids, so that without a field about any token may come.
class SamplingFields : public ToyServerFixture {
 protected:
  static constexpr int kTokens = 60;
  static constexpr int32_t kEos = FakeTokenizer::kEos;

  // One choice of 60 tokens at temperature 1 with 20 logprobs, unless `fields` say otherwise.
  json Choice(const json& fields) {
    json body = {{"prompt", {80, 81, 82}},
                 {"seed", 7},
                 {"temperature", 1.0},
                 {"max_tokens", kTokens},
                 {"ignore_eos", true},
                 {"logprobs", 20},
                 {"return_tokens_as_token_ids", true}};
    body.update(fields);
    return Complete(body)["choices"][0];
  }
  static Ids IdsOf(const json& choice) {
    Ids ids;
    for (const json& token : choice["logprobs"]["tokens"]) {
      ids.push_back(std::stoi(token.get<std::string>().substr(9)));  // token_id:5
    }
    return ids;
  }
  Ids Draw(const json& fields) { return IdsOf(Choice(fields)); }
  Ids Greedy() { return Draw({{"temperature", 0}}); }

  // Of each token: its probability, and the mass of all that are likelier.
  struct Place {
    double p = 0, best = 0, before = 0;
    int rank = 1;  // 21: behind the 20 that are told
  };
  std::vector<Place> Places(const json& fields) {
    const json logprobs = Choice(fields)["logprobs"];
    std::vector<Place> places;
    for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
      const auto own = logprobs["token_logprobs"][i].get<double>();
      Place place{.p = std::exp(own)};
      for (const json& other : logprobs["top_logprobs"][i]) {
        place.best = std::max(place.best, std::exp(other.get<double>()));
        if (other.get<double>() <= own) continue;
        ++place.rank;
        place.before += std::exp(other.get<double>());
      }
      places.push_back(place);
    }
    return places;
  }
  static int64_t Count(const Ids& ids, int32_t id) { return std::ranges::count(ids, id); }
};

TEST_F(SamplingFields, Temperature) {
  StartServer();
  for (const Place& place : Places({{"temperature", 0}})) EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(Draw({{"temperature", 1e-6}}), Greedy());
  const auto share = [](const std::vector<Place>& places) {
    return std::ranges::count_if(places, [](const Place& place) { return place.rank <= 10; });
  };
  const auto cold = share(Places({{"temperature", 0.25}})), warm = share(Places({{"temperature", 1}})),
             hot = share(Places({{"temperature", 20}}));
  EXPECT_GT(cold, warm + 10);
  EXPECT_GT(warm, hot + 3);
}

TEST_F(SamplingFields, TopK) {
  StartServer();
  EXPECT_EQ(Draw({{"top_k", 1}}), Greedy());
  int most = 0;
  for (const Place& place : Places({{"top_k", 5}})) most = std::max(most, place.rank);
  EXPECT_EQ(most, 5);
  EXPECT_EQ(Draw({{"top_k", -1}}), Draw(json::object()));
  EXPECT_EQ(Draw({{"top_k", 0}}), Draw(json::object()));
}

TEST_F(SamplingFields, TopP) {
  StartServer();
  EXPECT_EQ(Draw({{"top_p", 1e-6}}), Greedy());
  double most = 0;
  for (const Place& place : Places({{"top_p", 0.2}})) {
    EXPECT_LT(place.before, 0.2);  // those before it do not reach the mass
    most = std::max(most, place.before);
  }
  EXPECT_GT(most, 0.1);
}

TEST_F(SamplingFields, MinP) {
  StartServer();
  EXPECT_EQ(Draw({{"min_p", 1}}), Greedy());
  double least = 1;
  for (const Place& place : Places({{"min_p", 0.7}})) {
    EXPECT_GE(place.p, 0.7 * place.best * (1 - 1e-5));
    least = std::min(least, place.p / place.best);
  }
  EXPECT_LT(least, 0.9);
}

TEST_F(SamplingFields, TypicalP) {
  StartServer();
  // The one most typical id, whatever the noise, and it is not the likeliest.
  const Ids typical = Draw({{"typical_p", 1e-6}});
  EXPECT_EQ(Draw({{"typical_p", 1e-6}, {"seed", 8}}), typical);
  EXPECT_NE(typical, Greedy());
}

TEST_F(SamplingFields, SeedAloneInABatchAndAmongOthers) {
  StartServer();
  const Ids alone = Draw(json::object());
  EXPECT_EQ(Draw(json::object()), alone);
  EXPECT_NE(Draw({{"seed", 8}}), alone);
  EXPECT_NE(Draw({{"seed", nullptr}}), Draw({{"seed", nullptr}}));
  json batch = {{"prompt", {{9, 9}, {80, 81, 82}, {80, 81, 82, 83}}}, {"seed", 7}};
  batch.update({{"temperature", 1.0}, {"max_tokens", kTokens}, {"ignore_eos", true}});
  const json one = Complete({{"prompt", {80, 81, 82}},
                             {"seed", 7},
                             {"temperature", 1.0},
                             {"max_tokens", kTokens},
                             {"ignore_eos", true}});
  EXPECT_EQ(Complete(batch)["choices"][1]["text"], one["choices"][0]["text"]);
  std::vector<std::unique_ptr<HttpClient>> company;
  for (int i = 0; i < 20; ++i) {
    company.push_back(std::make_unique<HttpClient>(server_->port()));
    batch["seed"] = i;
    company.back()->SendRequest("POST", "/v1/completions", batch.dump());
  }
  EXPECT_EQ(Draw(json::object()), alone);
  for (const auto& client : company) EXPECT_EQ(client->Read().status, 200);
}

TEST_F(SamplingFields, ChoicesDrawWithSeedsThatFollow) {
  StartServer();
  json body = {{"prompt", {80}}, {"seed", 7}, {"temperature", 1.0}, {"max_tokens", 20}, {"n", 3}};
  const auto three = Texts(Complete(body));
  ASSERT_EQ(three.size(), 3u);
  body.erase("n");
  for (int i = 0; i < 3; ++i) {
    body["seed"] = 7 + i;
    EXPECT_EQ(Texts(Complete(body))[0], three[static_cast<size_t>(i)]);
  }
  EXPECT_NE(three[0], three[1]);
}

TEST_F(SamplingFields, BiasAllowedIdsAndBadWords) {
  StartServer();
  EXPECT_EQ(Draw({{"logit_bias", {{"200", 100}}}}), Ids(kTokens, 200));
  const Ids two = Draw({{"allowed_token_ids", {97, 98}}});
  EXPECT_EQ(Count(two, 97) + Count(two, 98), kTokens);
  EXPECT_GT(Count(two, 97), 5);
  EXPECT_EQ(Draw({{"allowed_token_ids", {97, 98}}, {"logit_bias", {{"97", -100}}}}), Ids(kTokens, 98));
  const std::string text = Choice({{"allowed_token_ids", {97, 98}}})["text"];
  EXPECT_NE(text.find("aab"), std::string::npos);
  const std::string without = Choice({{"allowed_token_ids", {97, 98}}, {"bad_words", {"aab"}}})["text"];
  EXPECT_EQ(without.find("aab"), std::string::npos) << without;
  EXPECT_NE(without.find("aa"), std::string::npos) << "the beginning of a bad word is none";
}

// Repetition looks at prompt and output; presence and frequency at the output alone, once or for each time.
TEST_F(SamplingFields, PenaltiesOfThePromptAndOfTheOutput) {
  StartServer();
  int changed = 0;
  for (int i = 0; i < 20; ++i) {
    // The token to come first is in the prompt.
    const json first = {{"prompt", {i, 97, 98, 99}},
                        {"allowed_token_ids", {97, 98, 99, 100}},
                        {"temperature", 0},
                        {"max_tokens", 1}};
    const auto with = [&](const char* field, double value) {
      json fields = first;
      fields[field] = value;
      return Draw(fields);
    };
    const Ids plain = Draw(first);
    EXPECT_EQ(with("presence_penalty", 2), plain);
    EXPECT_EQ(with("frequency_penalty", 2), plain);
    changed += with("repetition_penalty", 100) != plain;
  }
  EXPECT_GT(changed, 3);

  // Of the output. Without penalties the greedy choice of two ids repeats; with them they take turns more.
  const json few = {{"allowed_token_ids", {97, 98, 99, 100, 101, 102, 103, 104}}, {"temperature", 0}};
  const auto counts = [&](const json& fields, int max_tokens) {
    json all = few;
    all.update(fields);
    all["max_tokens"] = max_tokens;
    std::map<int32_t, int> of;
    for (const int32_t id : Draw(all)) ++of[id];
    int most = 0;
    for (const auto& [id, count] : of) most = std::max(most, count);
    return std::pair(static_cast<int>(of.size()), most);
  };
  const auto [ids, most] = counts(json::object(), 16);
  EXPECT_GT(most, 3);
  // 8 ids, logits at most 8 apart, 2 less each time: after 16 tokens no id leads by more than 4.
  const auto [penalised_ids, penalised_most] = counts({{"frequency_penalty", 2}}, 16);
  EXPECT_LT(penalised_most, most);
  EXPECT_GE(penalised_ids, ids);
  // A reward for what is there already.
  EXPECT_LT(counts({{"presence_penalty", -2}}, 16).first, counts({{"presence_penalty", 2}}, 16).first);
  EXPECT_LT(counts({{"frequency_penalty", -2}}, 16).first, ids);
  EXPECT_GT(counts({{"repetition_penalty", 100}}, 8).first, counts(json::object(), 8).first);
}

TEST_F(SamplingFields, EndTokens) {
  StartServer();
  // Of three ids one ends the text; it comes soon.
  const json few = {{"allowed_token_ids", {97, 98, kEos}}};
  const auto with = [&](const json& fields) {
    json all = few;
    all.update(fields);
    return Choice(all);
  };
  json choice = with({{"ignore_eos", false}});
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_EQ(Count(IdsOf(choice), kEos), 1);  // its entry is the last; the text has none of it
  EXPECT_EQ(IdsOf(choice).back(), kEos);
  EXPECT_LT(IdsOf(choice).size(), 30u);
  // ignore_eos is about the model's own.
  choice = with({{"ignore_eos", true}});
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_GT(Count(IdsOf(choice), kEos), 5);
  choice = with({{"ignore_eos", true}, {"stop_token_ids", {98}}});
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], 98);
  EXPECT_EQ(IdsOf(choice).back(), 98);
  EXPECT_EQ(choice["text"].get<std::string>().find('b'), std::string::npos);
  choice = with({{"ignore_eos", true}, {"stop_token_ids", {kEos}}});
  EXPECT_EQ(choice["stop_reason"], kEos);
  EXPECT_EQ(IdsOf(choice).back(), kEos);
}

// Nothing that would end the text ends it before: the end tokens cannot be drawn, stop texts are not looked
// for.
TEST_F(SamplingFields, MinTokensWithEachWayToEnd) {
  StartServer();
  const auto with = [&](const json& fields, bool is_enough) {
    json all = {{"ignore_eos", false}};
    all.update(fields);
    if (is_enough) all["min_tokens"] = 25;
    return Choice(all);
  };
  const json ways[] = {
      {{"allowed_token_ids", {97, 98, kEos}}},
      {{"allowed_token_ids", {97, 98, 99}}, {"stop_token_ids", {99}}},
      {{"allowed_token_ids", {97, 98, 99, kEos}}, {"stop_token_ids", {99}}, {"ignore_eos", true}},
      {{"allowed_token_ids", {97, 98, 99}}, {"stop", "c"}},
  };
  for (const json& way : ways) {
    const json early = with(way, false), late = with(way, true);
    EXPECT_LT(IdsOf(early).size(), 25u) << way;
    EXPECT_EQ(early["finish_reason"], "stop") << way;
    EXPECT_GT(IdsOf(late).size(), 25u) << way;
    EXPECT_EQ(late["finish_reason"], "stop") << way;
    Ids first = IdsOf(late);
    first.resize(25);
    if (way.contains("stop")) {
      EXPECT_GT(Count(first, 99), 0) << "a stop text may come";
      EXPECT_EQ(late["stop_reason"], "c");
    } else if (way.contains("stop_token_ids")) {
      EXPECT_EQ(Count(first, 99), 0) << "a stop token may not";
      EXPECT_EQ(late["stop_reason"], 99);
    } else {
      EXPECT_EQ(Count(first, kEos), 0);
    }
    if (way.value("ignore_eos", false)) {
      EXPECT_GT(Count(first, kEos), 0) << "an end token that is ignored may come";
    }
  }
}

TEST_F(SamplingFields, StopTextsAcrossTokensKeptOrNotStreamedOrNot) {
  StartServer();
  json body = {{"prompt", {80}}, {"seed", 3}, {"temperature", 1.0}, {"max_tokens", 200}};
  body["allowed_token_ids"] = {97, 98, 99};
  const std::string whole = Complete(body)["choices"][0]["text"];
  body["stop"] = {"zz", "abca"};
  const size_t at = whole.find("abca");
  ASSERT_GT(at, 5u);
  ASSERT_LT(at, whole.size());
  for (const bool keeps : {false, true}) {
    body["include_stop_str_in_output"] = keeps;
    body["stream"] = false;
    const json choice = Complete(body)["choices"][0];
    EXPECT_EQ(choice["text"], whole.substr(0, at + (keeps ? 4 : 0)));
    EXPECT_EQ(choice["stop_reason"], "abca");
    body["stream"] = true;
    const std::string stream = Post(server_->port(), "/v1/completions", body.dump()).body;
    std::string text;
    for (size_t event = 0; (event = stream.find("data: {", event)) != std::string::npos;) {
      const size_t end = stream.find("\n\n", event);
      text += json::parse(stream.substr(event + 6, end - event - 6))["choices"][0]["text"];
      event = end;
    }
    EXPECT_EQ(text, choice["text"].get<std::string>());
  }
}

TEST_F(SamplingFields, LogprobsOfPromptAndTextAgree) {
  StartServer();
  for (const int num_top : {0, 1, 20}) {
    const json generated = Choice({{"logprobs", num_top}, {"max_tokens", 30}})["logprobs"];
    for (const json& top : generated["top_logprobs"]) {
      EXPECT_GE(static_cast<int>(top.size()), std::max(num_top, 1));
      EXPECT_LE(static_cast<int>(top.size()), num_top + 1);
    }
    // The same tokens as a prompt have the same logprobs.
    Ids known = {80, 81, 82};
    for (const json& token : generated["tokens"]) {
      known.push_back(std::stoi(token.get<std::string>().substr(9)));
    }
    const json echoed = Choice({{"prompt", known},
                                {"logprobs", num_top},
                                {"prompt_logprobs", num_top},
                                {"echo", true},
                                {"max_tokens", 1}});
    ASSERT_EQ(echoed["logprobs"]["tokens"].size(), known.size() + 1);
    ASSERT_EQ(echoed["prompt_logprobs"].size(), known.size());
    EXPECT_TRUE(echoed["prompt_logprobs"][0].is_null());
    for (size_t i = 3; i < known.size(); ++i) {
      EXPECT_EQ(echoed["logprobs"]["token_logprobs"][i], generated["token_logprobs"][i - 3]);
      EXPECT_EQ(echoed["logprobs"]["top_logprobs"][i], generated["top_logprobs"][i - 3]);
      const json& scores = echoed["prompt_logprobs"][i];
      EXPECT_EQ(scores[std::to_string(known[i])]["logprob"], generated["token_logprobs"][i - 3]);
      EXPECT_EQ(scores.size(), generated["top_logprobs"][i - 3].size());
    }
  }
  EXPECT_EQ(Status(R"({"prompt":"a","logprobs":21})"), 400);
  EXPECT_EQ(Status(R"({"prompt":"a","prompt_logprobs":21})"), 400);
}

}  // namespace
}  // namespace attest::testing
