// Accounts in a capture, and a simple model of them: every event changes a plain table, and the peak is a copy of that
// table.
#pragma once

#include <cstdint>
#include <string>
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

struct AccountsInFile {
    const Folder folder;
    const std::string path = folder.file("a.hiw");
    capture::CaptureFile file;
    Accounts accounts;

    AccountsInFile() {
        REQUIRE(make(file, path) == 0);
        accounts.attach(file);
    }
    // What a reader finds is what the model says.
    void compare(const FileView& view, const AccountsModel& model) const {
        const AccountsModel::Figures live = model.sum();
        if (view.header().live_bytes != live.bytes || view.header().live_blocks != live.blocks)
            FAIL("live is ", view.header().live_bytes, ", not ", live.bytes);
        for (std::uint32_t id = 1; id < model.live.size(); ++id) {
            const auto& record = view.record<capture::AccountRecord>(capture::Table::accounts, id);
            if (FileView::Figures{record.live_bytes, record.live_blocks} != model.live[id])
                FAIL("account ", id, " holds ", record.live_bytes);
            if (record.total_bytes != model.total_bytes[id] || record.total_blocks != model.total_blocks[id])
                FAIL("the total of account ", id);
            if (view.at_slice_peak(id) != model.open.at_slice_peak[id])
                FAIL("account ", id, " held ", view.at_slice_peak(id).bytes, " at the slice's peak");
            if (view.at_peak(id) != model.peak().at_slice_peak[id])
                FAIL("account ", id, " held ", view.at_peak(id).bytes, " at the peak");
        }
        if (!accounts.is_consistent()) FAIL("the accounts find themselves inconsistent");
    }
};

}  // namespace hiwater::tests
