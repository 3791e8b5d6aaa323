#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/exit_code.h"
#include "client/report/html.h"
#include "client/report/pivot.h"
#include "client/report/report_page.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"
#include "tests/unit/client/invoke.h"

namespace switchyard::client {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHostile[] = "<script>alert(1)</script>\"'";

TEST(Html, EscapesText) {
  EXPECT_EQ(EscapeHtml("<a href=\"x\">'&"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
  EXPECT_EQ(EscapeHtml("a\tb\nc"), "a\tb\nc");
  // Direction overrides and escapes are shown, not obeyed.
  EXPECT_THAT(EscapeHtml("\xe2\x80\xae\x1b"),
              AllOf(Not(HasSubstr("\xe2\x80\xae")), Not(HasSubstr("\x1b"))));
}

TEST(Html, TablesHoldAnything) {
  Listing listing;
  listing.columns = {{"a", kHostile}, {"hidden", ""}, {"n", "N", Align::kRight}};
  listing.rows = {{{kHostile, {}}, {"never shown", {}}, {1.5, "1.5"}},
                  {{"diverged", {}}, {"", {}}, {std::nan(""), {}}},
                  {{"overflown", {}}, {"", {}}, {-std::numeric_limits<double>::infinity(), {}}}};
  const std::string table = HtmlTable(listing);
  EXPECT_THAT(table, Not(HasSubstr("<script")));
  EXPECT_THAT(table, Not(HasSubstr("never shown")));
  EXPECT_THAT(table, HasSubstr("<td class=\"number\">1.5</td>"));
  // SQ3: the class of a value is seen.
  EXPECT_THAT(table, HasSubstr("<td class=\"number\">NaN</td>"));
  EXPECT_THAT(table, HasSubstr("<td class=\"number\">-Inf</td>"));
}

// Ids of one drawing do not meet those of another, in tags only.
TEST(InlineSvg, PrefixesIds) {
  const Result<std::string> svg = InlineSvg(
      "<?xml version=\"1.0\"?>\n<svg xmlns='http://www.w3.org/2000/svg'><defs><path id='p' "
      "d='M0,0'/></defs>"
      "<use xlink:href='#p' style='clip-path: url(#q)'/><text>id='p' #p</text></svg>\n",
      "f1-");
  ASSERT_TRUE(svg.ok()) << svg.status().ToString();
  EXPECT_EQ(*svg,
            "<svg xmlns='http://www.w3.org/2000/svg'><defs><path id='f1-p' d='M0,0'/></defs>"
            "<use xlink:href='#f1-p' style='clip-path: url(#f1-q)'/><text>id='p' #p</text></svg>");
}

// gnuplot's polygons have blanks around the sign.
TEST(InlineSvg, TakesBlanksAroundTheSign) {
  const Result<std::string> svg =
      InlineSvg("<svg><polygon fill = 'red' points=\"0,0 1,1\" id = 'a'/></svg>", "f-");
  ASSERT_TRUE(svg.ok()) << svg.status().ToString();
  EXPECT_EQ(*svg, "<svg><polygon fill='red' points=\"0,0 1,1\" id='f-a'/></svg>");
  EXPECT_FALSE(InlineSvg("<svg><g onload = 'x'/></svg>", "f-").ok());
}

// A drawing is lines and text; anything that could act is refused.
TEST(InlineSvg, RefusesWhatActs) {
  for (const char* inside :
       {"<script>alert(1)</script>", "<g onload='alert(1)'/>", "<a href='x'/>", "<foreignObject/>",
        "<use xlink:href='http://x'/>", "<g style='fill: url(http://x)'/>", "<style>p{}</style>",
        "<g id=x>", "<g id='x>", "<!-- open", "<image xlink:href='#x'/>", "<g"}) {
    EXPECT_FALSE(InlineSvg(StrCat("<svg>", inside, "</svg>"), "f-").ok()) << inside;
  }
  EXPECT_FALSE(InlineSvg("no drawing", "f-").ok());
}

// Every text of a sweep and its runs may hold markup; the page has none of it as markup.
TEST(Report, IsSafeAgainstHostileNames) {
  const TemporaryFolder folder;
  const FakeServer server({.has_failed_run = true, .hostile_text = kHostile});
  const Ran ran = RunOn(server, {"report", "last", "--html", folder.path() + "/r.html"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::string page = folder.Read("r.html");
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("demo&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;/3"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("exit code 5"));
  EXPECT_THAT(page, HasSubstr("00112233445566778899"));
  EXPECT_THAT(page, HasSubstr("Causality"));
  EXPECT_THAT(page, Not(HasSubstr("http://x")));
}

// Registered comparisons are on the page with the coordinator's own sentences.
TEST(Report, HasTheVerdictsOfRegisteredComparisons) {
  const FakeServer server({});
  const Ran ran = RunOn(server, {"report", "demo", "--html", "-"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(server.LastRequest("Compare"), HasSubstr("registered: 1"));
  EXPECT_THAT(ran.out, HasSubstr("mcf against smoe: equivalent within ±0.01 bits per byte"));
  EXPECT_THAT(ran.out, HasSubstr("unmatched tokens: smoe 1600, mcf 3200"));
  EXPECT_THAT(ran.out, HasSubstr("SEED WITHOUT A VALUE"));
}

// A report of a sweep that is gone leaves no file.
TEST(Report, WritesNothingOnAnError) {
  const TemporaryFolder folder;
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"report", "other", "--html", folder.path() + "/r.html"}).code,
            kExitUsage);
  EXPECT_FALSE(FileExists(folder.path() + "/r.html"));
  EXPECT_THAT(RunOn(server, {"report", "demo", "--html", "-"}).out, HasSubstr("<!DOCTYPE html>"));
}

pb::Run RunOf(uint64_t number, const std::string& a, const std::string& b, double value) {
  pb::Run run;
  run.set_number(number);
  for (const auto& [axis, text] : {std::pair{"a", a}, std::pair{"b", b}}) {
    pb::AxisValue* column = run.add_columns();
    column->set_axis(axis);
    column->set_value(text);
  }
  pb::SeriesSummary* summary = run.add_summary();
  summary->set_name("valid/loss");
  summary->set_count(1);
  summary->set_last(value);
  summary->set_has_best(true);
  summary->set_best(value);
  return run;
}

// The table of the sweep file: rows by columns, and a mean only over complete rows.
TEST(Pivot, ShowsMeansByRowsAndColumns) {
  pb::Sweep sweep;
  sweep.add_axes("a");
  sweep.add_axes("b");
  sweep.mutable_objective()->set_metric("valid/loss");
  sweep.mutable_objective()->set_goal(pb::GOAL_MINIMIZE);
  const std::vector<pb::Run> runs = {RunOf(1, "x", "p", 1), RunOf(2, "x", "p", 3),
                                     RunOf(3, "x", "q", 5), RunOf(4, "y", "p", 7)};
  pb::TableSpec table;
  table.add_rows("a");
  table.add_columns("b");
  table.set_mean(true);
  const Result<Listing> listing = PivotListing(sweep, runs, table);
  ASSERT_TRUE(listing.ok()) << listing.status().ToString();
  ASSERT_EQ(listing->rows.size(), 2U);
  EXPECT_EQ(listing->rows[0][1].shown, "2 ± 1.4");
  EXPECT_EQ(listing->rows[0][2].shown, "5");
  EXPECT_EQ(listing->rows[0][3].shown, "3.5");
  EXPECT_EQ(listing->rows[1][2].shown, "-");
  EXPECT_EQ(listing->rows[1][3].shown, "-");
  table.set_show(pb::TABLE_SHOW_BEST);
  EXPECT_EQ(PivotListing(sweep, runs, table)->rows[0][1].shown, "1");
  table.set_show(pb::TABLE_SHOW_EACH);
  EXPECT_EQ(PivotListing(sweep, runs, table)->rows[0][1].shown, "1, 3");
  table.add_rows("no");
  EXPECT_EQ(PivotListing(sweep, runs, table).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace switchyard::client
