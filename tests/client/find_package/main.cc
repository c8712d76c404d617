// Exits 0 when the installed library answers as its header says.
#include <kvtier/client.h>

#include <iostream>
#include <vector>

int main() {
  kvtier::ModelSpec spec;
  spec.name = "outside";
  spec.explicit_part_bytes = {4096};
  spec.pack_order = kvtier::PackOrder::kOpaque;
  const std::vector<uint32_t> tokens(64, 1);
  const std::string root =
      kvtier::CanonicalRoot(kvtier::SpecId(spec), {}, kvtier::PromptKind::kTokens, 64);
  const auto keys = kvtier::BlockKeys(kvtier::Digest128::Of(root), tokens, 16);
  if (keys.size() != 4) return 1;

  kvtier::ClientOptions options;
  options.address = "unix:/nobody/listens/here";
  options.connect_deadline = std::chrono::milliseconds(200);
  const auto client = kvtier::Client::Connect(options);
  std::cout << client.status() << "\n";
  return client.status().code() == absl::StatusCode::kUnavailable ? 0 : 1;
}
