#include "worker/analysis/audit_report.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <map>

#include "switchyard/v1/spec.pb.h"

namespace switchyard::analysis {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::ModelSpec Model(const std::string& text) {
  v1::ModelSpec model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model)) << text;
  return model;
}

ProbeResult Dependent(ProbeKind kind, bool is_training) {
  return {.kind = kind,
          .name = "a change",
          .is_training = is_training,
          .influence = Influence::kDependent,
          .delta = 0.25,
          .differences = {{.layer = 1, .what = "experts", .delta = 1, .position = 3, .tokens = 2},
                          {.layer = -1, .what = "logits", .delta = 0.25, .position = 4}}};
}

std::map<std::string, double> Series(const AuditReport& report) {
  const auto series = AuditSeries(report);
  return {series.begin(), series.end()};
}

const char* const kSmoe = "decoder {} moe { layers: 0 experts: 4 router { smoe {} } }";

TEST(AuditReport, NothingSeenIsCausalAndIndependent) {
  const AuditReport report =
      Judge({{.kind = ProbeKind::kTime, .name = "tokens after 3 replaced"}}, Model(kSmoe));
  EXPECT_EQ(report.seen, (AuditVerdict{"causal", "none", "none"}));
  EXPECT_EQ(report.seen, report.declared);
  EXPECT_FALSE(report.has_undeclared());
  EXPECT_THAT(AuditText(report), HasSubstr("passed: as declared"));
  EXPECT_THAT(AuditText(report), HasSubstr("1 of 1 probes came out with the same bits"));
}

// Rounding is no dependence, and is said.
TEST(AuditReport, BoundedDifferencesAreNoDependence) {
  ProbeResult probe = Dependent(ProbeKind::kBatch, false);
  probe.influence = Influence::kBounded;
  const AuditReport report = Judge({probe}, Model(kSmoe));
  EXPECT_EQ(report.seen.batch_dependence, "none");
  EXPECT_FALSE(report.has_undeclared());
  EXPECT_THAT(AuditText(report), HasSubstr("bounded  batch, a change, evaluation routing"));
}

TEST(AuditReport, NamesWhereADependenceComesIn) {
  const AuditReport report = Judge({Dependent(ProbeKind::kTime, false)}, Model(kSmoe));
  EXPECT_EQ(report.seen.causality, "noncausal");
  EXPECT_TRUE(report.has_undeclared());
  EXPECT_THAT(AuditText(report), HasSubstr("DEPENDS  time, a change, evaluation routing: layer 1 "
                                           "experts, 2 tokens, first at sequence 0, position 3; "
                                           "the model's logits by 0.25"));
  EXPECT_THAT(AuditText(report), HasSubstr("FAILED"));
}

TEST(AuditReport, TrainingAloneIsItsOwnWord) {
  const AuditReport report =
      Judge({Dependent(ProbeKind::kTime, true), Dependent(ProbeKind::kBatch, true)},
            Model("decoder {} moe { layers: 0 experts: 4 top_k: 1 router { base {} } }"));
  EXPECT_EQ(report.seen, (AuditVerdict{"noncausal_training", "training", "none"}));
  EXPECT_EQ(report.seen, report.declared);
  EXPECT_FALSE(report.has_undeclared());
  const auto series = Series(report);
  EXPECT_EQ(series.at(kAuditCausality), 1);
  EXPECT_EQ(series.at(kAuditBatchDependence), 1);
  EXPECT_EQ(series.at(kAuditPaddingDependence), 0);
  EXPECT_EQ(series.at(kAuditUndeclared), 0);
  EXPECT_EQ(series.at("audit/time_delta"), 0.25);
  EXPECT_EQ(series.at("audit/probes"), 2);
  EXPECT_EQ(series.at("audit/exact_probes"), 0);
}

// A capacity counts padding; that it does not bind in a few windows is no fault.
TEST(AuditReport, ADeclaredDependenceNeedNotShow) {
  const AuditReport report =
      Judge({}, Model("decoder {} moe { layers: 0 experts: 4 router { smoe {} } "
                      "capacity { factor { train: 2 } drop: DROP_POLICY_POSITION } }"));
  EXPECT_EQ(report.declared, (AuditVerdict{"causal", "training", "training"}));
  EXPECT_EQ(report.seen, (AuditVerdict{"causal", "none", "none"}));
  EXPECT_FALSE(report.has_undeclared());
  EXPECT_THAT(AuditText(report), HasSubstr("did not show"));
}

TEST(AuditReport, DenseModelsAreDeclaredCausal) {
  EXPECT_EQ(Judge({}, Model("decoder {}")).declared, (AuditVerdict{"causal", "none", "none"}));
  EXPECT_EQ(Judge({}, Model("decoder {} moe { layers: 0 router { dense {} } }")).declared,
            (AuditVerdict{"causal", "none", "none"}));
}

}  // namespace
}  // namespace switchyard::analysis
