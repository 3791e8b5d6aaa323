#include "common/base/sha256.h"

#include <openssl/evp.h>

#include "common/base/check.h"
#include "common/base/strings.h"

namespace switchyard {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  SWITCHYARD_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::Update(std::string_view data) {
  SWITCHYARD_CHECK(EVP_DigestUpdate(state_->context, data.data(), data.size()) == 1);
}

std::string Sha256::Finish() {
  std::string out(32, '\0');
  unsigned size = 0;
  SWITCHYARD_CHECK(EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(out.data()),
                                      &size) == 1);
  return out;
}

std::string Sha256Hex(std::string_view data) {
  Sha256 hash;
  hash.Update(data);
  return HexEncode(hash.Finish());
}

}  // namespace switchyard
