#include "server/scheduler/contacts.h"

#include <algorithm>

namespace switchyard::scheduler {

WorkerContact ContactOf(const Worker& worker) {
  return {.worker = worker.row.id,
          .contact = worker.contact,
          .nonce = worker.nonce,
          .hb_seq = worker.hb_seq,
          .last = worker.last,
          .applied = worker.applied,
          .instance_changed = worker.instance_changed,
          .is_leaving = worker.is_leaving};
}

std::vector<WorkerContact> ContactsToKeep(const State& state,
                                          const std::map<WorkerId, WorkerContact>& before) {
  std::vector<WorkerContact> kept;
  for (const auto& [id, worker] : state.workers) {
    WorkerContact contact = ContactOf(worker);
    if (const auto changed = before.find(id); changed != before.end()) {
      contact = changed->second;
      contact.last = std::max(contact.last, worker.last);
    }
    kept.push_back(contact);
  }
  return kept;
}

}  // namespace switchyard::scheduler
