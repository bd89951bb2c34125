// The module's functions for what only the whole engine has: holders, resident memory, lines, and limits.
#include "module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/own_limit.h"
#include "base/process.h"
#include "holders/search.h"
#include "interpose/hooks.h"
#include "interpose/python_threads.h"
#include "lines/line_door.h"
#include "residency/breakdown.h"
#include "residency/resident_watch.h"
#include "session/last_lines.h"
#include "session/recorder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hiwater {

namespace {

// Returns nothing where it has to be done with fresh descriptors.
nb::object read_and_reset_resident_peak(int statm, int status, int clear_refs, std::uint64_t inode,
                                        std::uint64_t device, std::int64_t lowest_maximum) {
    process::Resident resident;
    if (!process::read_and_reset_resident({statm, status, clear_refs, inode, device}, &lowest_maximum, &resident))
        return nb::none();
    recorder().note_resident_peak_before_reset(resident.peak_bytes);
    return nb::make_tuple(resident.now_bytes, resident.peak_bytes, lowest_maximum);
}

void search_holders(const std::string& name, nb::handle target, double seconds, nb::handle of_type) {
    if (!recording() || recorder().counts_only())
        throw EngineFault("nothing is being recorded: start a recording first");
    holders::Search search({target.is_none() ? 0 : reinterpret_cast<std::uintptr_t>(target.ptr()),
                            of_type.is_none() ? nullptr : of_type.ptr()});
    int error = recorder().begin_search(search);
    if (error == ENOSPC) throw EngineFault("there is no room in the capture for another search");
    if (error == ENOENT) throw EngineFault("the recording has just ended");
    if (error != 0) raise_os_error(error, "a copy of the process");
    std::string reason;
    {
        nb::gil_scoped_release release;  // the program goes on
        search.wait(static_cast<std::uint64_t>(seconds * 1e9));
        reason = search.failure();
        if (reason.empty()) error = recorder().end_search(search, name);
    }
    if (!reason.empty()) throw EngineFault("the search for holders failed: " + reason);
    if (error != 0)
        throw EngineFault(
            "what holds the objects could not be stored: the recording has ended, or its capture cannot grow");
}

nb::tuple residency_snapshot() {
    BusyGuard busy;  // what it allocates is not the program's
    interpose::watch_forks();
    residency::Breakdown found;
    bool done = false;
    {
        nb::gil_scoped_release release;
        done = residency::take_snapshot(&found);
    }
    if (!done) throw EngineFault("the process's mappings cannot be read: this needs Linux with /proc");
    nb::list rows, large;
    for (std::size_t i = 0; i < residency::kParts; ++i)
        rows.append(nb::make_tuple(residency::name_of(static_cast<residency::Part>(i)), found.rows[i].resident_bytes,
                                   found.rows[i].untouched_bytes));
    for (const auto& block : found.large)
        large.append(nb::make_tuple(block.from_malloc, block.address, block.bytes, block.touched_bytes));
    return nb::make_tuple(found.resident_bytes, rows, large, found.is_unreadable, found.page_limit_reached,
                          found.is_malloc_unknown, found.not_found_bytes);
}

}  // namespace

void add_system_functions(nb::module_& m) {
    m.attr("MISSES") = "";
    m.def(
        "limit_address_space",
        [](std::uint64_t bytes) {
            if (!own_limit.set(bytes)) raise_os_error(errno, "RLIMIT_AS");
        },
        "bytes"_a);
    m.def("set_last_lines", [](const std::vector<std::string>& command) { last_lines.begin(command); }, "command"_a);
    m.def("write_last_lines", [] {
        const nb::gil_scoped_release released;
        return last_lines.write();
    });
    m.def("search_holders", &search_holders, "name"_a, "target"_a.none() = nb::none(), "seconds"_a = 60.0,
          "of_type"_a.none() = nb::none());
    m.def("residency_snapshot", &residency_snapshot);
    m.def("touched_bytes", &residency::touched_bytes, "address"_a, "bytes"_a);
    m.def("resident_read_and_reset", &read_and_reset_resident_peak);
    m.def(
        "resident_watch_start",
        [](std::uint64_t interval_ns) {
            if (!resident_watch::start(interval_ns))
                throw EngineFault("no thread could be made to sample resident memory (see ulimit -u)");
        },
        "interval_ns"_a);
    m.def("resident_watch_stop", &resident_watch::stop);
    m.def("resident_watch_pause", &resident_watch::pause);
    m.def("resident_watch_resume", &resident_watch::resume);
    m.def("resident_watch_peak", &resident_watch::peak);
    m.def("resident_watch_read_and_reset", &resident_watch::read_and_reset_peak);
    lines::add_to(m);
}

}  // namespace hiwater
