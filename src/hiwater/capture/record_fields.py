"""The fields of a capture's header and tables, said once for what writes captures and what reads them.

The other end is `native/capture/format.h`. A field is written as its name, how many numbers it has where these are
several, and its letter of `struct`; text is "s". Offsets follow from natural alignment, as in the C++ structs.
"""

from __future__ import annotations

from hiwater.capture.format import KINDS

Fields = tuple[tuple[str, str, int], ...]
"""(name, letter, count)"""


def _fields(text: str) -> Fields:
    words = (word.partition(":") for word in text.split())
    return tuple((name, kind[-1], int(kind[:-1] or 1)) for name, _, kind in words)


def _tables(**texts: str) -> dict[str, Fields]:
    return {name: _fields(text) for name, text in texts.items()}


FIXED_HEADER = _fields(
    "magic:8s version:I header_bytes:I extent_bytes:Q schema_offset:Q schema_bytes:Q directory_offset:Q "
    "first_extent_offset:Q max_extents:I"
)
HEADER = _fields(
    "extents_used:I state:I pid:I process_start_ticks:Q boot_id:40s started_unix_ns:Q started_ns:Q heartbeat_ns:Q "
    "ended_ns:Q exit_code:i counted_kinds:I sample_bytes:Q lost_events:Q stop_reason:I table_total:I "
    "resident_start_bytes:q resident_last_bytes:q resident_peak_bytes:q resident_error_bytes:q resident_exact:I "
    "epoch_index:I epoch0_peak_bytes:q epoch0_peak_blocks:q epoch0_peak_ns:Q epoch0_slice_start_ns:Q "
    "epoch1_peak_bytes:q epoch1_peak_blocks:q epoch1_peak_ns:Q epoch1_slice_start_ns:Q overhead_bytes:Q "
    "table_count:16Q exact_total_bytes:Q exact_total_blocks:Q inherited_bytes:Q"
)
EVENTS_HEADER = _fields(
    "live_bytes:q live_blocks:q slice_peak_bytes:q slice_peak_blocks:q generation:Q slice_peak_ns:Q "
    f"kind_live_bytes:{len(KINDS)}q"
)
"""What each event of the recorded program changes."""
WRITER_HEADER = _fields("writer_pid:I writer_reserved:I writer_start_ticks:Q")
"""Who writes, where that is another process. The target may live on when its sampler is killed."""
TABLES = _tables(
    string_bytes="",
    strings="offset:Q length:I reserved:I",
    codes="function:I file:I first_line:I kind:I",
    nodes="parent:I code:I line:I reserved:I",
    accounts=(
        "live_bytes:q live_blocks:q saved_bytes:q saved_blocks:q generation:Q total_bytes:Q total_blocks:Q node:I "
        "kind:H sampled:H"
    ),
    account_peaks="peak_bytes:q peak_blocks:q entered_bytes:q temporaries:Q",
    slices="start_ns:Q end_ns:Q peak_ns:Q peak_bytes:q peak_blocks:q first_entry:Q entry_count:Q unlisted_bytes:q",
    slice_entries="account:I blocks:I bytes:q",
    timeline=f"at_ns:Q resident_bytes:q live_bytes:{len(KINDS)}q",
    facts="key:I value:I",
    markers="at_ns:Q value:Q kind:I node:I",
)
"""What each capture has. The bytes of strings have no fields."""
SAMPLED_TABLES = _tables(
    processes="pid:I parent_pid:I name:I command:I start_ns:Q end_ns:Q peak_bytes:q exact:I exit_status:i",
    process_samples="at_ns:Q resident_bytes:q process:I reserved:I",
    scopes="name:I pid:I thread_id:I depth:I start_ns:Q end_ns:Q start_bytes:q end_bytes:q peak_bytes:q",
)
"""What `hiwater sample` writes besides."""
ENGINE_TABLES = _tables(
    residency="at_ns:Q resident_bytes:q untouched_bytes:q part:I",
    pressure=(
        "at_ns:Q address_space_bytes:q address_space_limit:q cgroup_bytes:q cgroup_limit:q available_bytes:q "
        "shared_excess_bytes:q private_bytes:q"
    ),
    large_blocks="at_ns:Q bytes:q touched_bytes:q node:I from_malloc:I",
    devices=(
        "name:I backend:I source:I note:I limit_bytes:q peak_allocated_bytes:q peak_reserved_bytes:q "
        "peak_used_bytes:q peak_at_ns:Q exact:I"
    ),
    device_samples=(
        "at_ns:Q allocated_bytes:q allocated_peak_bytes:q reserved_bytes:q reserved_peak_bytes:q used_bytes:q device:I"
    ),
    device_terms="at_ns:Q bytes:q device:I term:I",
    live_snapshots="at_ns:Q slice:Q number:Q first_account:I name:I",
    holder_searches=(
        "at_ns:Q objects:Q references:Q bytes:Q all_paths:Q pause_ns:Q duration_ns:Q first_path:I paths:I "
        "first_block:I blocks:I first_reference:I references_between:I target:I name:I failure:I request:I"
    ),
    holder_paths="parent:I dominator:I kind:I shared:I label:I type:I objects:Q bytes:Q retained_bytes:Q",
    holder_blocks="path:I account:I blocks:Q bytes:Q",
    holder_references="from:I to:I references:Q",
    relatives="at_ns:Q resident_bytes:q shared_excess_bytes:q pid:I",
    modules="path:I identity:I code:I",
)
"""What the engine writes where there is something to say; it has more fields. Where one is there it has these."""
