// A child that keeps accounts in a capture, which its parent runs one instruction at a time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "accounts_model.h"

namespace hiwater::tests {

struct AccountEvent {
    enum class Sort { credit, debit, close_slice } sort;
    std::uint32_t id;
    std::int64_t bytes;
};

class SteppedAccounts {
public:
    static constexpr std::uint32_t kAccounts = 4;

    SteppedAccounts(Trace& trace, int count);

    // Calls visit(pid of the child) after each of its instructions, and returns how many there were.
    std::uint64_t run(const std::function<void(pid_t)>& visit);

    const std::vector<AccountEvent>& events() const { return events_; }
    // The peak after so many events.
    std::int64_t peak_after(std::uint32_t events) const { return peaks_[events]; }
    // Events that the child has ended.
    std::uint32_t done() const { return done_->load(); }
    const FileView& view() const { return *view_; }

private:
    [[noreturn]] void keep_accounts();

    AccountsInFile in_file_;
    std::vector<AccountEvent> events_;
    std::vector<std::int64_t> peaks_;
    std::atomic<std::uint32_t>* done_ = nullptr;
    std::unique_ptr<FileView> view_;
};

}  // namespace hiwater::tests
