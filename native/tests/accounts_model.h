// A simple model of the accounts: every event changes a plain table, and the peak is a copy of that table.
#pragma once

#include <cstdint>
#include <vector>

#include "accounting/accounts.h"
#include "support.h"

namespace hiwater::tests {

struct AccountsModel {
    using Figures = FileView::Figures;

    struct Slice {
        Figures peak;
        std::vector<Figures> at_slice_peak;  // by account
    };

    std::vector<capture::Kind> kinds{capture::Kind::python};  // by account; 0 is none
    std::vector<Figures> live{{0, 0}};
    std::vector<std::uint64_t> total_bytes{0}, total_blocks{0};
    Slice open{{0, 0}, {{0, 0}}}, best{{0, 0}, {{0, 0}}};
    std::vector<Slice> closed;

    Figures sum() const {
        Figures all{0, 0};
        for (std::size_t id = 1; id < live.size(); ++id)
            if (is_counted(kinds[id])) all = {all.bytes + live[id].bytes, all.blocks + live[id].blocks};
        return all;
    }
    void add_account(capture::Kind kind) {
        kinds.push_back(kind);
        live.push_back({0, 0});
        total_bytes.push_back(0);
        total_blocks.push_back(0);
        open.at_slice_peak.push_back({0, 0});
        best.at_slice_peak.push_back({0, 0});
    }
    void change(std::uint32_t id, std::int64_t bytes, std::int64_t blocks) {
        live[id] = {live[id].bytes + bytes, live[id].blocks + blocks};
        // Kinds that do not count make no peak, but a peak shows them.
        if (is_counted(kinds[id]) && sum().bytes > open.peak.bytes) open = {sum(), live};
    }
    void credit(std::uint32_t id, std::int64_t bytes) {
        total_bytes[id] += static_cast<std::uint64_t>(bytes);
        ++total_blocks[id];
        change(id, bytes, 1);
    }
    void close_slice() {
        closed.push_back(open);
        if (open.peak.bytes > best.peak.bytes) best = open;
        open = {sum(), live};
    }
    const Slice& peak() const { return open.peak.bytes > best.peak.bytes ? open : best; }
};

}  // namespace hiwater::tests
