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
        if (used_ + n > kSchemaBytes) __builtin_trap();  // kSchemaBytes is too small for the format: a fault of the build
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
                ::snprintf(piece, sizeof piece, "%s[\"%s\",\"<%c%zu\",%zu,%zu]", comma(), name, sign, sizeof(Element), offset,
                           std::extent_v<T>);
            } else {
                ::snprintf(piece, sizeof piece, "%s[\"%s\",\"<%c%zu\",%zu]", comma(), name, sign, sizeof(Element), offset);
            }
        }
        text(piece);
    }
    void table(const char* name, std::size_t record_bytes) {
        char piece[160];
        ::snprintf(piece, sizeof piece, "%s{\"name\":\"%s\",\"record_bytes\":%zu,\"fields\":[", first_table_ ? "" : "]},", name,
                   record_bytes);
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

#define HIWATER_FIELD(Record, name) schema.field<decltype(Record::name)>(#name, offsetof(Record, name))
#define HIWATER_EPOCH(index, name)             \
    schema.field<decltype(EpochRecord::name)>( \
        "epoch" #index "_" #name, offsetof(Header, epoch) + (index) * sizeof(EpochRecord) + offsetof(EpochRecord, name))

void header_fields(SchemaText& schema) {
    HIWATER_FIELD(Header, version);
    HIWATER_FIELD(Header, extent_bytes);
    HIWATER_FIELD(Header, directory_offset);
    HIWATER_FIELD(Header, first_extent_offset);
    HIWATER_FIELD(Header, max_extents);
    HIWATER_FIELD(Header, extents_used);
    HIWATER_FIELD(Header, state);
    HIWATER_FIELD(Header, pid);
    HIWATER_FIELD(Header, process_start_ticks);
    HIWATER_FIELD(Header, boot_id);
    HIWATER_FIELD(Header, started_unix_ns);
    HIWATER_FIELD(Header, started_ns);
    HIWATER_FIELD(Header, heartbeat_ns);
    HIWATER_FIELD(Header, ended_ns);
    HIWATER_FIELD(Header, exit_code);
    HIWATER_FIELD(Header, counted_kinds);
    HIWATER_FIELD(Header, sample_bytes);
    HIWATER_FIELD(Header, lost_events);
    HIWATER_FIELD(Header, stop_reason);
    HIWATER_FIELD(Header, table_total);
    HIWATER_FIELD(Header, resident_start_bytes);
    HIWATER_FIELD(Header, resident_last_bytes);
    HIWATER_FIELD(Header, resident_peak_bytes);
    HIWATER_FIELD(Header, resident_error_bytes);
    HIWATER_FIELD(Header, resident_exact);
    HIWATER_FIELD(Header, epoch_index);
    HIWATER_EPOCH(0, peak_bytes);
    HIWATER_EPOCH(0, peak_blocks);
    HIWATER_EPOCH(0, peak_ns);
    HIWATER_EPOCH(0, slice_start_ns);
    HIWATER_EPOCH(1, peak_bytes);
    HIWATER_EPOCH(1, peak_blocks);
    HIWATER_EPOCH(1, peak_ns);
    HIWATER_EPOCH(1, slice_start_ns);
    HIWATER_FIELD(Header, overhead_bytes);
    HIWATER_FIELD(Header, table_count);
    HIWATER_FIELD(Header, exact_total_bytes);
    HIWATER_FIELD(Header, exact_total_blocks);
    HIWATER_FIELD(Header, inherited_bytes);
    HIWATER_FIELD(Header, live_bytes);
    HIWATER_FIELD(Header, live_blocks);
    HIWATER_FIELD(Header, slice_peak_bytes);
    HIWATER_FIELD(Header, slice_peak_blocks);
    HIWATER_FIELD(Header, generation);
    HIWATER_FIELD(Header, slice_peak_ns);
    HIWATER_FIELD(Header, kind_live_bytes);
}

void name_tables(SchemaText& schema) {
    schema.table("string_bytes", 1);
    schema.table("strings", sizeof(StringRecord));
    HIWATER_FIELD(StringRecord, offset);
    HIWATER_FIELD(StringRecord, length);
    HIWATER_FIELD(StringRecord, reserved);
    schema.table("codes", sizeof(CodeRecord));
    HIWATER_FIELD(CodeRecord, function);
    HIWATER_FIELD(CodeRecord, file);
    HIWATER_FIELD(CodeRecord, first_line);
    HIWATER_FIELD(CodeRecord, kind);
    schema.table("nodes", sizeof(NodeRecord));
    HIWATER_FIELD(NodeRecord, parent);
    HIWATER_FIELD(NodeRecord, code);
    HIWATER_FIELD(NodeRecord, line);
    HIWATER_FIELD(NodeRecord, reserved);
}

void account_tables(SchemaText& schema) {
    schema.table("accounts", sizeof(AccountRecord));
    HIWATER_FIELD(AccountRecord, live_bytes);
    HIWATER_FIELD(AccountRecord, live_blocks);
    HIWATER_FIELD(AccountRecord, saved_bytes);
    HIWATER_FIELD(AccountRecord, saved_blocks);
    HIWATER_FIELD(AccountRecord, generation);
    HIWATER_FIELD(AccountRecord, total_bytes);
    HIWATER_FIELD(AccountRecord, total_blocks);
    HIWATER_FIELD(AccountRecord, node);
    HIWATER_FIELD(AccountRecord, kind);
    HIWATER_FIELD(AccountRecord, sampled);
    schema.table("account_peaks", sizeof(AccountPeakRecord));
    HIWATER_FIELD(AccountPeakRecord, peak_bytes);
    HIWATER_FIELD(AccountPeakRecord, peak_blocks);
    HIWATER_FIELD(AccountPeakRecord, entered_bytes);
    HIWATER_FIELD(AccountPeakRecord, temporaries);
}

void time_tables(SchemaText& schema) {
    schema.table("slices", sizeof(SliceRecord));
    HIWATER_FIELD(SliceRecord, start_ns);
    HIWATER_FIELD(SliceRecord, end_ns);
    HIWATER_FIELD(SliceRecord, peak_ns);
    HIWATER_FIELD(SliceRecord, peak_bytes);
    HIWATER_FIELD(SliceRecord, peak_blocks);
    HIWATER_FIELD(SliceRecord, first_entry);
    HIWATER_FIELD(SliceRecord, entry_count);
    HIWATER_FIELD(SliceRecord, unlisted_bytes);
    schema.table("slice_entries", sizeof(SliceEntryRecord));
    HIWATER_FIELD(SliceEntryRecord, account);
    HIWATER_FIELD(SliceEntryRecord, blocks);
    HIWATER_FIELD(SliceEntryRecord, bytes);
    schema.table("timeline", sizeof(TimelineRecord));
    HIWATER_FIELD(TimelineRecord, at_ns);
    HIWATER_FIELD(TimelineRecord, resident_bytes);
    HIWATER_FIELD(TimelineRecord, live_bytes);
    schema.table("facts", sizeof(FactRecord));
    HIWATER_FIELD(FactRecord, key);
    HIWATER_FIELD(FactRecord, value);
    schema.table("markers", sizeof(MarkerRecord));
    HIWATER_FIELD(MarkerRecord, at_ns);
    HIWATER_FIELD(MarkerRecord, value);
    HIWATER_FIELD(MarkerRecord, kind);
    HIWATER_FIELD(MarkerRecord, node);
    schema.table("residency", sizeof(ResidencyRecord));
    HIWATER_FIELD(ResidencyRecord, at_ns);
    HIWATER_FIELD(ResidencyRecord, resident_bytes);
    HIWATER_FIELD(ResidencyRecord, untouched_bytes);
    HIWATER_FIELD(ResidencyRecord, part);
    HIWATER_FIELD(ResidencyRecord, reserved);
    schema.table("large_blocks", sizeof(LargeBlockRecord));
    HIWATER_FIELD(LargeBlockRecord, at_ns);
    HIWATER_FIELD(LargeBlockRecord, bytes);
    HIWATER_FIELD(LargeBlockRecord, touched_bytes);
    HIWATER_FIELD(LargeBlockRecord, node);
    HIWATER_FIELD(LargeBlockRecord, from_malloc);
    schema.table("pressure", sizeof(PressureRecord));
    HIWATER_FIELD(PressureRecord, at_ns);
    HIWATER_FIELD(PressureRecord, address_space_bytes);
    HIWATER_FIELD(PressureRecord, address_space_limit);
    HIWATER_FIELD(PressureRecord, cgroup_bytes);
    HIWATER_FIELD(PressureRecord, cgroup_limit);
    HIWATER_FIELD(PressureRecord, available_bytes);
}

void device_tables(SchemaText& schema) {
    schema.table("devices", sizeof(DeviceRecord));
    HIWATER_FIELD(DeviceRecord, name);
    HIWATER_FIELD(DeviceRecord, backend);
    HIWATER_FIELD(DeviceRecord, source);
    HIWATER_FIELD(DeviceRecord, note);
    HIWATER_FIELD(DeviceRecord, limit_bytes);
    HIWATER_FIELD(DeviceRecord, peak_allocated_bytes);
    HIWATER_FIELD(DeviceRecord, peak_reserved_bytes);
    HIWATER_FIELD(DeviceRecord, peak_used_bytes);
    HIWATER_FIELD(DeviceRecord, peak_at_ns);
    HIWATER_FIELD(DeviceRecord, exact);
    HIWATER_FIELD(DeviceRecord, reserved);
    schema.table("device_samples", sizeof(DeviceSampleRecord));
    HIWATER_FIELD(DeviceSampleRecord, at_ns);
    HIWATER_FIELD(DeviceSampleRecord, allocated_bytes);
    HIWATER_FIELD(DeviceSampleRecord, allocated_peak_bytes);
    HIWATER_FIELD(DeviceSampleRecord, reserved_bytes);
    HIWATER_FIELD(DeviceSampleRecord, reserved_peak_bytes);
    HIWATER_FIELD(DeviceSampleRecord, used_bytes);
    HIWATER_FIELD(DeviceSampleRecord, device);
    HIWATER_FIELD(DeviceSampleRecord, reserved);
    schema.table("device_terms", sizeof(DeviceTermRecord));
    HIWATER_FIELD(DeviceTermRecord, at_ns);
    HIWATER_FIELD(DeviceTermRecord, bytes);
    HIWATER_FIELD(DeviceTermRecord, device);
    HIWATER_FIELD(DeviceTermRecord, term);
}

}  // namespace

void write_schema(char* out) noexcept {
    static_assert(kVersion == 3, "as the text below says");
    SchemaText schema(out);
    schema.text("{\"format\":\"hiwater.capture\",\"version\":3,\"header\":[");
    schema.fields_begin();
    header_fields(schema);
    schema.text("],\"tables\":[");
    name_tables(schema);
    account_tables(schema);
    time_tables(schema);
    device_tables(schema);
    schema.text("]}]}");
    schema.pad();
}

}  // namespace hiwater::capture
