// A search for what holds the interpreter's objects: made in a copy of the process, while the process goes on.
#pragma once

#include <cstdint>
#include <string>

#include "holders/process_copy.h"
#include "holders/python_heap.h"
#include "holders/result.h"

namespace hiwater::holders {

class Search : Uncopied {
public:
    explicit Search(const Wanted& wanted = {}) noexcept : wanted_(wanted) {}

    // Under the recorder's lock, which the copy then has, too; the caller holds the GIL. `work(roots, wanted, result)`
    // runs in the copy.
    template <typename Work>
    int start(const Work& work) noexcept {
        if (shared_.get() == nullptr) return ENOMEM;
        const hw_heap_roots roots = hw_heap_find_roots();
        began_ns_ = process::monotonic_ns();
        const int error = copy_.start([&] { work(roots, wanted_, shared_.get()); });
        pause_ns_ = process::monotonic_ns() - began_ns_;
        return error;
    }

    // Without the lock and the GIL, until the copy is done.
    void wait(std::uint64_t most_ns) noexcept;
    // For a caller that asks now and then instead: whether it is done. A copy that has gone on for longer is ended.
    bool has_ended(std::uint64_t most_ns) noexcept;
    // Once it is done: empty, or why nothing was found.
    std::string failure() const;

    const Result& result() const noexcept { return *shared_.get(); }
    std::uint64_t began_ns() const noexcept { return began_ns_; }  // CLOCK_MONOTONIC
    std::uint64_t pause_ns() const noexcept { return pause_ns_; }
    std::uint64_t duration_ns() const noexcept { return duration_ns_; }

private:
    const Wanted wanted_;
    SharedResult shared_;
    ProcessCopy copy_;
    std::uint64_t began_ns_ = 0, pause_ns_ = 0, duration_ns_ = 0;
};

}  // namespace hiwater::holders
