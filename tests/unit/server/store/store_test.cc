#include "server/store/store.h"

#include <filesystem>
#include <string>

#include "tests/suites/store_suite.h"

namespace switchyard::store {
namespace {

class SqliteHome final : public StoreHome {
 public:
  SqliteHome() : dir_(::testing::TempDir() + "/store_suite_" + NewUuidV4().ToString()) {}
  ~SqliteHome() override { std::filesystem::remove_all(dir_); }
  std::unique_ptr<Store> Open() override {
    Result<std::unique_ptr<Store>> store = OpenSqliteStore({.data_dir = dir_, .now_ms = 1});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *std::move(store) : nullptr;
  }
  bool IsDurable() const override { return true; }

 private:
  const std::string dir_;
};

class MemoryHome final : public StoreHome {
 public:
  std::unique_ptr<Store> Open() override { return MakeMemoryStore(); }
  bool IsDurable() const override { return false; }
};

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreSuite,
    ::testing::Values(StoreParam{"Sqlite", [] { return std::make_unique<SqliteHome>(); }},
                      StoreParam{"Memory", [] { return std::make_unique<MemoryHome>(); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace switchyard::store
