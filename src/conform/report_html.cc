// One page that stands alone: no script, no font, no image from elsewhere. A person sees in one look whether
// anything failed, then which kernel can do what, then why not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/escape_markup.h"
#include "conform/report.h"

namespace attest::conform {
namespace {

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light;--ink:#1c2530;--soft:#5c6b7a;--line:#dfe5ec;--pass:#e3f3e6;--pass-ink:#155d27;
--some:#eef6e4;--refused:#eef1f5;--refused-ink:#64748b;--fail:#b3261e;--fail-soft:#fdecea}
*{box-sizing:border-box}
body{margin:0;font:15px/1.5 system-ui,"Segoe UI",Roboto,sans-serif;color:var(--ink);background:#fbfcfd}
main{max-width:1500px;margin:0 auto;padding:28px 32px 60px}
h1{font-size:24px;margin:0 0 2px}h2{font-size:18px;margin:34px 0 8px}
p{margin:6px 0;max-width:100ch}.soft{color:var(--soft)}
.banner{display:flex;gap:26px;align-items:baseline;padding:16px 20px;border-radius:10px;margin:18px 0 6px;
flex-wrap:wrap;border:1px solid}
.banner.ok{background:var(--pass);border-color:#b9dfc1;color:var(--pass-ink)}
.banner.bad{background:var(--fail-soft);border-color:#f3b8b3;color:var(--fail)}
.banner b{font-size:22px}.banner span b{font-size:18px}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:10px;background:#fff}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{padding:5px 9px;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
thead th{background:#f3f6f9;position:sticky;top:0;vertical-align:bottom;white-space:normal;min-width:92px;
font-size:12.5px;line-height:1.3}
tbody th{font-weight:500;background:#fff;position:sticky;left:0}
tbody tr.group th{background:#f3f6f9;font-weight:600;color:var(--soft);position:static}
td.n,th.n{text-align:right;color:var(--soft)}
td.pass{background:var(--pass);color:var(--pass-ink)}td.some{background:var(--some);color:var(--pass-ink)}
td.refused{background:var(--refused);color:var(--refused-ink)}
td.fail{background:var(--fail);color:#fff;font-weight:600}td.none{color:#b6c0cb}
td small{opacity:.75;margin-left:5px}
.key{display:flex;gap:18px;flex-wrap:wrap;margin:10px 0;font-size:13px;color:var(--soft)}
.key i{display:inline-block;width:13px;height:13px;border-radius:3px;margin-right:6px;vertical-align:-2px;
border:1px solid rgba(0,0,0,.08)}
.failure{border:1px solid #f3b8b3;border-left:5px solid var(--fail);border-radius:8px;background:#fff;
padding:12px 16px;margin:10px 0;overflow-wrap:anywhere}
.failure h3{margin:0 0 4px;font-size:15px;color:var(--fail)}
code{font:13px/1.5 ui-monospace,"DejaVu Sans Mono",monospace;background:#f3f6f9;border-radius:4px;padding:1px 5px;
white-space:normal;word-break:break-word}
details{border:1px solid var(--line);border-radius:8px;background:#fff;margin:8px 0;padding:8px 14px;
overflow-wrap:anywhere}
summary{cursor:pointer;font-weight:500}details table{margin-top:8px}details td{white-space:normal}
)css";

std::string Tooltip(const Cell& cell) {
  std::string text = fmt::format("{} passed, {} refused, {} failed", cell.passed, cell.refused, cell.failed);
  size_t shown = 0;
  for (const auto& [reason, count] : cell.reasons) {
    if (++shown > 8) break;
    text += fmt::format("\n{} x {}", count, reason);
  }
  return text;
}

std::string CellHtml(const Cell& cell) {
  const auto td = [&](const char* kind, const std::string& inner) {
    return fmt::format("<td class=\"{}\" title=\"{}\">{}</td>", kind, EscapeMarkup(Tooltip(cell)), inner);
  };
  switch (VerdictOf(cell)) {
    case Verdict::kFail:
      return td("fail", fmt::format("FAIL <small>{} of {}</small>", cell.failed,
                                    cell.failed + cell.passed + cell.refused));
    case Verdict::kRefused:
      return cell.refused == 0 ? td("none", "&ndash;") : td("refused", "refused");
    case Verdict::kPass:
      break;
  }
  std::string letters;
  for (const char c : PhaseLetters(cell.phases))
    letters += fmt::format("{}{}", letters.empty() ? "" : " ", c);
  return cell.refused == 0 ? td("pass", fmt::format("pass <small>{}</small>", letters))
                           : td("some", fmt::format("pass {}/{} <small>{}</small>", cell.passed,
                                                    cell.passed + cell.refused, letters));
}

void AppendMatrix(const SuiteResult& result, const std::vector<MatrixRow>& rows, const char* first_column,
                  std::string& html) {
  html += "<div class=\"scroll\"><table><thead><tr><th>";
  html += first_column;
  html += "</th><th class=\"n\">trials</th>";
  for (const SubjectInfo& subject : result.subjects) {
    // Names break where they may.
    std::string name;
    for (const char c : EscapeMarkup(subject.name))
      name += c == '_' ? std::string("_<wbr>") : std::string(1, c);
    html += fmt::format("<th title=\"{}\">{}</th>", EscapeMarkup(subject.words), name);
  }
  html += "</tr></thead><tbody>";
  for (const MatrixRow& row : rows) {
    html += fmt::format("<tr><th>{}</th><td class=\"n\">{}</td>", EscapeMarkup(row.capability), row.trials);
    for (const Cell& cell : row.cells) html += CellHtml(cell);
    html += "</tr>";
  }
  html += "</tbody></table></div>";
}

}  // namespace

std::string HtmlReport(const SuiteResult& result) {
  int64_t passed = 0, refused = 0, failed = 0;
  for (const auto& records : result.records) {
    for (const Record& record : records) {
      passed += record.ran && record.verdict == Verdict::kPass ? 1 : 0;
      refused += record.ran && record.verdict == Verdict::kRefused ? 1 : 0;
      failed += record.ran && record.verdict == Verdict::kFail ? 1 : 0;
    }
  }
  std::string html = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">";
  html += "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>";
  html += failed == 0 ? "Attention conformance: no failure"
                      : fmt::format("Attention conformance: {} FAILED", failed);
  html += fmt::format("</title><style>{}</style></head><body><main>", kStyle);
  html += "<h1>Attention conformance</h1>";
  html +=
      "<p class=\"soft\">Every kernel on every case: refused with a reason, or right in every row against a "
      "double-precision oracle. There is no third outcome.</p>";
  html += fmt::format("<div class=\"banner {}\"><b>{}</b>", failed == 0 ? "ok" : "bad",
                      failed == 0 ? std::string("No failure") : fmt::format("{} failed", failed));
  html += fmt::format(
      "<span><b>{}</b> passed</span><span><b>{}</b> refused with a reason</span>"
      "<span><b>{}</b> kernels</span><span><b>{}</b> trials each</span><span>seed {}, {:.1f} s</span>"
      "</div>",
      passed, refused, result.subjects.size(), result.trials.size(), result.options.seed, result.seconds);

  html += "<h2>Kernels and capabilities</h2>";
  html +=
      "<div class=\"key\"><span><i style=\"background:var(--pass)\"></i>pass: right in every row</span>"
      "<span><i style=\"background:var(--some)\"></i>pass n/m: right in n, refused the others</span>"
      "<span><i style=\"background:var(--refused)\"></i>refused with a reason (point at it)</span>"
      "<span><i style=\"background:var(--fail)\"></i>FAIL</span>"
      "<span>D decode &middot; P prefill &middot; E extend &middot; U uniform multi-token "
      "decode</span></div>";
  AppendMatrix(result, MatrixOf(result, /*bugs_apart=*/false), "capability", html);

  if (!result.failures.empty()) {
    html += "<h2>What failed, shrunk to the smallest case</h2>";
    for (const Failure& failure : result.failures) {
      html += fmt::format("<div class=\"failure\"><h3>{} on {}</h3><p>{}</p>",
                          EscapeMarkup(result.subjects[static_cast<size_t>(failure.subject)].name),
                          EscapeMarkup(result.trials[failure.trial].name), EscapeMarkup(failure.why));
      if (!failure.smallest.empty()) {
        html += fmt::format(
            "<p>Smallest failing case, after {} tries: <code>{}</code></p><p class=\"soft\">{}</p>",
            failure.attempts, EscapeMarkup(failure.smallest), EscapeMarkup(failure.smallest_why));
      }
      if (!failure.also.empty()) {
        html +=
            fmt::format("<details><summary>{} more trials shrink to it</summary><p>{}</p></details>",
                        failure.also.size(), EscapeMarkup(fmt::format("{}", fmt::join(failure.also, ", "))));
      }
      if (!failure.file.empty())
        html +=
            fmt::format("<p class=\"soft\">Replay: <code>{}</code></p>", EscapeMarkup(failure.file.string()));
      html += "</div>";
    }
  }

  const bool has_bugs =
      std::ranges::any_of(result.trials, [](const Trial& t) { return t.part == Part::kBugs; });
  if (has_bugs) {
    SuiteResult bugs{.options = result.options, .subjects = result.subjects};
    for (size_t i = 0; i < result.trials.size(); ++i) {
      if (result.trials[i].part != Part::kBugs) continue;
      bugs.trials.push_back(result.trials[i]);
      bugs.records.push_back(result.records[i]);
    }
    html +=
        "<h2>Public bugs, one by one</h2><p class=\"soft\">Reports of silently wrong attention in other "
        "projects, each with the check that would have caught it.</p>";
    AppendMatrix(bugs, MatrixOf(bugs, /*bugs_apart=*/true), "report and claim", html);
    html +=
        "<details><summary>Reports of other layers, and what is checked here in their place</summary><table>";
    for (const Trial& trial : bugs.trials) {
      if (!trial.instead.empty())
        html += fmt::format("<tr><td>{}</td><td>{}</td></tr>", EscapeMarkup(trial.name),
                            EscapeMarkup(trial.instead));
    }
    html += "</table></details>";
  }

  std::string heading = "<h2>Why refused</h2>";  // above the first kernel that refused anything
  const std::vector<MatrixRow> rows = MatrixOf(result, false);
  for (size_t subject = 0; subject < result.subjects.size(); ++subject) {
    std::map<std::string, int64_t> reasons;
    for (const MatrixRow& row : rows) {
      for (const auto& [text, count] : row.cells[subject].reasons) reasons[text] += count;
    }
    if (reasons.empty()) continue;
    html += std::exchange(heading, "");
    html += fmt::format(
        "<details><summary>{} ({} reasons)</summary><table><tr><th class=\"n\">trials</th><th>reason"
        "</th></tr>",
        EscapeMarkup(result.subjects[subject].name), reasons.size());
    for (const auto& [text, count] : reasons)
      html += fmt::format("<tr><td class=\"n\">{}</td><td>{}</td></tr>", count, EscapeMarkup(text));
    html += "</table></details>";
  }
  html += "</main></body></html>\n";
  return html;
}

}  // namespace attest::conform
