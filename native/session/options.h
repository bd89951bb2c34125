// The options of a recording, and its summary.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "capture/capture_file.h"
#include "session/top_line.h"
#include "stacks/ownership.h"
#include "unwind/unwinder.h"

namespace hiwater {

// Why a recording ends by itself. Written into the capture at its start: on a full disk there is no room for more
// words.
inline constexpr const char* kNoMemory = "no memory for the recorder's tables";
inline constexpr const char* kCannotGrow = "the capture cannot grow: the disk is full or the file is gone";
inline constexpr const char* kSharedRegion =
    "the program has blocks whose addresses differ by a multiple of 2^48: the recorder does not distinguish them";
inline constexpr const char* kTruncated = "another program truncated its capture or wrote over it";
inline constexpr const char* kJumped =
    "a signal handler jumped (siglongjmp) out of an allocation while it was recorded";
inline constexpr const char* kDisplaced =
    "a tool that was active before the recording (such as tracemalloc) ended, and removed hiwater's hooks of Python's "
    "objects";

inline constexpr const char* kLastWordsNotWritten = "last_words_not_written";  // a fact

struct StartOptions {
    std::string path;
    mode_t mode = capture::kPrivate;  // the capture's permissions
    bool only_counters = false;       // no capture, no stacks: live bytes and their peak
    std::map<std::string, std::string> facts;
    std::uint64_t sample_bytes = 0;          // blocks below this are sampled; 0: every block is recorded
    std::uint64_t sample_seed = 0;           // 0: other random numbers each time
    std::string cgroup_usage;                // file with the group's usage; "" where there is none
    std::vector<std::string> cgroup_limits;  // files with the limits of the group and of those around it
    std::string internal_prefix, own_script;
    std::vector<OwnerRule> owner_rules;
    std::string last_words;  // the file for them; "": none
    std::uint64_t interval_ns =
        0;  // a snapshot of what is live is due each time so much has passed; 0: at markers and phases only
    // How children of the process are recorded (session/children.h). `run_variable`: the entry for their environment,
    // to which the run's folder is added; "" where they are not recorded. `run_folder`: set in a child; the first
    // process has its own beside its capture.
    std::string run_variable, run_folder;
    bool residency_snapshots =
        true;  // each takes a millisecond for 10 MiB: too long where recordings begin and end all the time
    // What hiwater's own code made resident in this process before the recording: pages of files, and others.
    std::int64_t code_file_bytes = 0, code_anonymous_bytes = 0;
    unwind::Scope native_frames;
};

struct Summary {
    std::string path, stop_reason;
    bool is_lost = false;  // nothing of it can be read
    std::string fate;      // what became of the capture's file meanwhile, in words; "" where nothing did
    std::int64_t peak_bytes = 0, peak_blocks = 0, live_bytes = 0;
    std::int64_t program_peak_bytes = 0, resident_error_bytes = 0;  // the resident peak without the overhead
    std::int64_t overhead_bytes = 0;                                // of hiwater, at that moment
    bool resident_exact = false;
    std::uint64_t lost_events = 0;
    std::uint64_t sample_bytes = 0;
    std::int64_t standard_error_bytes = 0;  // of the peak, at most; 0 where every block was recorded
    TopLine top;
    Refusal refused;
};

}  // namespace hiwater
