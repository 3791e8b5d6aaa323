#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

// Named points that a long run must reach: each shows that a corner of the protocol was visited.
namespace switchyard::simulation {

// clang-format off
#define SWITCHYARD_SOMETIMES(X) \
  X(trainer_adopted) X(exit_read_after_adoption) X(exit_found_at_agent_start) X(never_executed) \
  X(missing_exit_record) X(fence_inferred) X(fence_by_exit_code) X(late_outcome) X(gap_answered) \
  X(duplicate_batch) X(partly_duplicate_batch) X(watchdog_exit) X(step_check_exit) \
  X(last_check_exit) X(stop_deadline_exit) X(refused_intent) X(refused_lease) X(refused_disk) \
  X(refused_tombstone) X(late_spawn_prevented) X(restore_rewind) X(overlay_rollback) \
  X(degraded_echo) X(append_refused_degraded) X(commit_outcome_unknown) X(wal_tail_lost) \
  X(sentinel_caught) X(old_backup_restored) X(stale_nonce) \
  X(stale_hb_seq) X(stale_rev) X(foreign_incarnation) X(unknown_attempt) X(sealed_stream) \
  X(lost_by_silence) X(lost_no_record) X(lost_instance_changed) X(lost_in_stream_wait) \
  X(stream_wait) X(suspect) X(back_from_suspect) X(back_from_lost) X(parked_reply) \
  X(parked_pushed_out) X(late_pass) X(tick_held_back) X(restart_grace_held) X(coordinator_killed) \
  X(crash_before_commit) X(crash_after_commit) X(crash_between_replies) X(agent_killed) \
  X(agent_crash_before_records) X(agent_crash_after_records) X(agent_crash_after_spawn) \
  X(fork_server_killed) X(fork_server_waited_for) X(child_killed_before_exec) \
  X(host_crashed) X(lines_lost_in_host_crash) X(exit_record_lost) X(torn_tail_cut) \
  X(directory_lost) X(pid_reused) X(adoption_refused_start_time) X(spawn_waited_for_slot) \
  X(slot_busy) X(slow_exit) X(killed_at_stop_deadline) X(terminated_before_deadline) \
  X(checkpoint_published) X(checkpoint_orphaned) X(checkpoint_superseded) X(checkpoint_corrupt) \
  X(resumed_from_checkpoint) \
  X(fell_back_to_older_checkpoint) X(resumed_on_other_worker) X(waited_for_checkpoint_store) \
  X(cancel_while_queued) X(cancel_while_active) X(cancel_in_backoff) X(finish_beats_cancel) \
  X(cancel_retried_same_reply) X(request_id_with_other_body) X(sweep_cancelled) \
  X(run_linked_twice) X(run_kept_by_other_sweep) X(proposal_after_cancel) X(run_succeeded) \
  X(run_failed) X(run_quarantined) X(run_timed_out) X(preempted_from_outside) \
  X(incomplete_exit_zero) X(payload_dropped) X(chunks_merged) X(unsynced_lines_survived) \
  X(suspended_past_lease) X(partition_healed) X(wall_jump) \
  X(disk_full_lines_dropped) X(worker_disk_low) X(worker_drained) X(worker_cordoned) \
  X(exclusive_replaced) X(credits_short) X(batches_overtook) X(segments_deleted) \
  X(resent_after_restore) X(hang_detected) X(run_paused) X(run_resumed) X(run_pruned) \
  X(sweep_paused) X(killed_by_user) X(emptied_by_deadline) X(held_after_restore) \
  X(attempt_recovered) X(resumed_from_recovered) X(recovered_lines_stored) X(ended_run_back) X(unknown_run_left)
// clang-format on

enum class Point : uint8_t {
#define SWITCHYARD_POINT(name) name,
  SWITCHYARD_SOMETIMES(SWITCHYARD_POINT)
#undef SWITCHYARD_POINT
};
inline constexpr std::string_view kPointNames[] = {
#define SWITCHYARD_POINT(name) #name,
    SWITCHYARD_SOMETIMES(SWITCHYARD_POINT)
#undef SWITCHYARD_POINT
};
inline constexpr size_t kPoints = std::size(kPointNames);
using Coverage = std::array<uint64_t, kPoints>;

}  // namespace switchyard::simulation
