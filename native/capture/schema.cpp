// The schema text: what format.h declares, said to readers that do not share our compiler.
#include <stdio.h>
#include <string.h>

#include <type_traits>

#include "capture/capture_file.h"

namespace hiwater::capture {

namespace {

class SchemaText {
public:
    explicit SchemaText(char* out) : out_(out) {}

    void text(const char* piece) {
        const std::size_t n = ::strlen(piece);
        if (used_ + n > kSchemaBytes)
            __builtin_trap();  // kSchemaBytes is too small for the format: a fault of the build
        ::memcpy(out_ + used_, piece, n);
        used_ += n;
    }
    template <typename T>
    void field(const char* name, std::size_t offset) {
        using Element = std::remove_all_extents_t<T>;
        char piece[160];
        if constexpr (std::is_same_v<Element, char>) {
            ::snprintf(piece, sizeof piece, "%s[\"%s\",\"S%zu\",%zu]", comma(), name, sizeof(T), offset);
        } else {
            constexpr char sign = std::is_signed_v<Element> ? 'i' : 'u';
            if constexpr (std::is_array_v<T>) {
                ::snprintf(piece, sizeof piece, "%s[\"%s\",\"<%c%zu\",%zu,%zu]", comma(), name, sign, sizeof(Element),
                           offset, std::extent_v<T>);
            } else {
                ::snprintf(piece, sizeof piece, "%s[\"%s\",\"<%c%zu\",%zu]", comma(), name, sign, sizeof(Element),
                           offset);
            }
        }
        text(piece);
    }
    void table(const char* name, std::size_t record_bytes) {
        char piece[160];
        ::snprintf(piece, sizeof piece, "%s{\"name\":\"%s\",\"record_bytes\":%zu,\"fields\":[",
                   first_table_ ? "" : "]},", name, record_bytes);
        first_table_ = false;
        first_ = true;
        text(piece);
    }
    void pad() { ::memset(out_ + used_, ' ', kSchemaBytes - used_); }
    void fields_begin() { first_ = true; }

private:
    const char* comma() {
        const char* c = first_ ? "" : ",";
        first_ = false;
        return c;
    }
    char* out_;
    std::size_t used_ = 0;
    bool first_ = true, first_table_ = true;
};

// HIWATER_FIELDS(Record, a, b, c) names the fields Record::a, Record::b and Record::c. The preprocessor takes one name
// off the list each time that it scans the text: 36 times at most.
#define HIWATER_FIELDS(Record, ...) HIWATER_SCAN(HIWATER_FIELD(Record, __VA_ARGS__))
#define HIWATER_FIELD(Record, name, ...)                                 \
    schema.field<decltype(Record::name)>(#name, offsetof(Record, name)); \
    __VA_OPT__(HIWATER_FIELD_LATER HIWATER_PARENTHESES(Record, __VA_ARGS__))
#define HIWATER_FIELD_LATER() HIWATER_FIELD
#define HIWATER_PARENTHESES ()
#define HIWATER_SCAN(...) \
    HIWATER_SCAN6(HIWATER_SCAN6(HIWATER_SCAN6(HIWATER_SCAN6(HIWATER_SCAN6(HIWATER_SCAN6(__VA_ARGS__))))))
#define HIWATER_SCAN6(...) \
    HIWATER_SCAN1(HIWATER_SCAN1(HIWATER_SCAN1(HIWATER_SCAN1(HIWATER_SCAN1(HIWATER_SCAN1(__VA_ARGS__))))))
#define HIWATER_SCAN1(...) __VA_ARGS__
#define HIWATER_TABLE(table_name, Record, ...) \
    schema.table(#table_name, sizeof(Record)); \
    HIWATER_FIELDS(Record, __VA_ARGS__)

#define HIWATER_EPOCH(index, name)             \
    schema.field<decltype(EpochRecord::name)>( \
        "epoch" #index "_" #name,              \
        offsetof(Header, epoch) + (index) * sizeof(EpochRecord) + offsetof(EpochRecord, name))

void header_fields(SchemaText& schema) {
    HIWATER_FIELDS(Header, version, extent_bytes, directory_offset, first_extent_offset, max_extents, extents_used,
                   state, pid, process_start_ticks, boot_id, started_unix_ns, started_ns, heartbeat_ns, ended_ns,
                   exit_code, counted_kinds, sample_bytes, lost_events, stop_reason, table_total, resident_start_bytes,
                   resident_last_bytes, resident_peak_bytes, resident_error_bytes, resident_exact, epoch_index);
    HIWATER_EPOCH(0, peak_bytes);
    HIWATER_EPOCH(0, peak_blocks);
    HIWATER_EPOCH(0, peak_ns);
    HIWATER_EPOCH(0, slice_start_ns);
    HIWATER_EPOCH(1, peak_bytes);
    HIWATER_EPOCH(1, peak_blocks);
    HIWATER_EPOCH(1, peak_ns);
    HIWATER_EPOCH(1, slice_start_ns);
    HIWATER_FIELDS(Header, overhead_bytes, table_count, exact_total_bytes, exact_total_blocks, inherited_bytes,
                   nearest_used_bytes, nearest_limit_bytes, nearest_limit_kind, ended_by, snapshot_ns, named_markers,
                   scopes, end_signal, unknown_frees, refused_children, refused_error, search_request, search_answer,
                   search_error, shared_excess_bytes, overhead_last_bytes, program_peak_bytes, program_peak_error_bytes,
                   live_bytes, live_blocks, slice_peak_bytes, slice_peak_blocks, generation, slice_peak_ns,
                   kind_live_bytes);
}

void tables(SchemaText& schema) {
    schema.table("string_bytes", 1);
    HIWATER_TABLE(strings, StringRecord, offset, length, reserved);
    HIWATER_TABLE(codes, CodeRecord, function, file, first_line, kind, owner);
    HIWATER_TABLE(nodes, NodeRecord, parent, code, line, reserved);
    HIWATER_TABLE(accounts, AccountRecord, live_bytes, live_blocks, saved_bytes, saved_blocks, generation, total_bytes,
                  total_blocks, node, kind, sampled);
    HIWATER_TABLE(account_peaks, AccountPeakRecord, peak_bytes, peak_blocks, entered_bytes, temporaries);
    HIWATER_TABLE(slices, SliceRecord, start_ns, end_ns, peak_ns, peak_bytes, peak_blocks, first_entry, entry_count,
                  unlisted_bytes);
    HIWATER_TABLE(slice_entries, SliceEntryRecord, account, blocks, bytes);
    HIWATER_TABLE(timeline, TimelineRecord, at_ns, resident_bytes, live_bytes, overhead_bytes, mapped_bytes);
    HIWATER_TABLE(facts, FactRecord, key, value);
    HIWATER_TABLE(markers, MarkerRecord, at_ns, value, kind, node);
    HIWATER_TABLE(residency, ResidencyRecord, at_ns, resident_bytes, untouched_bytes, part, reserved);
    HIWATER_TABLE(large_blocks, LargeBlockRecord, at_ns, bytes, touched_bytes, node, from_malloc);
    HIWATER_TABLE(pressure, PressureRecord, at_ns, address_space_bytes, address_space_limit, cgroup_bytes, cgroup_limit,
                  available_bytes, shared_excess_bytes, private_bytes, mapped_excess_bytes);
    HIWATER_TABLE(devices, DeviceRecord, name, backend, source, note, limit_bytes, peak_allocated_bytes,
                  peak_reserved_bytes, peak_used_bytes, peak_at_ns, exact, reserved);
    HIWATER_TABLE(device_samples, DeviceSampleRecord, at_ns, allocated_bytes, allocated_peak_bytes, reserved_bytes,
                  reserved_peak_bytes, used_bytes, device, reserved);
    HIWATER_TABLE(device_terms, DeviceTermRecord, at_ns, bytes, device, term);
    HIWATER_TABLE(scopes, ScopeRecord, name, pid, thread_id, depth, start_ns, end_ns, start_bytes, end_bytes,
                  peak_bytes, allocated_start_bytes, allocated_end_bytes, allocated_peak_bytes);
    HIWATER_TABLE(live_snapshots, LiveSnapshotRecord, at_ns, slice, number, first_account, name);
    HIWATER_TABLE(holder_searches, HolderSearchRecord, at_ns, objects, references, bytes, all_paths, pause_ns,
                  duration_ns, first_path, paths, first_block, blocks, first_reference, references_between, target,
                  name, failure, request);
    HIWATER_TABLE(holder_paths, HolderPathRecord, parent, dominator, kind, shared, label, type, objects, bytes,
                  retained_bytes);
    HIWATER_TABLE(holder_blocks, HolderBlockRecord, path, account, blocks, bytes);
    HIWATER_TABLE(holder_references, HolderReferenceRecord, from, to, references);
    HIWATER_TABLE(relatives, RelativeRecord, at_ns, resident_bytes, shared_excess_bytes, shared_bytes, mapped_bytes,
                  mapped_excess_bytes, pid, reserved);
    HIWATER_TABLE(modules, ModuleRecord, start, end, bias, path, identity, code, reserved);
}

}  // namespace

void write_schema(char* out) noexcept {
    static_assert(kVersion == 3, "as the text below says");
    SchemaText schema(out);
    schema.text("{\"format\":\"hiwater.capture\",\"version\":3,\"header\":[");
    schema.fields_begin();
    header_fields(schema);
    schema.text("],\"tables\":[");
    tables(schema);
    schema.text("]}]}");
    schema.pad();
}

}  // namespace hiwater::capture
