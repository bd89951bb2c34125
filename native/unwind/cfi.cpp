#include "unwind/cfi.h"

#include <string.h>

namespace hiwater::unwind {

namespace {

// An entry of `.eh_frame`: what it says after its length and its second word.
struct Entry {
    Cursor content;
    const std::uint8_t* second_word;
    std::uint32_t second;
};
bool read_entry(const Bytes& tables, const std::uint8_t* at, Entry* out) noexcept {
    Cursor cursor(tables, at);
    const auto length = cursor.fixed<std::uint32_t>();
    if (!cursor.is_good() || length < 4 || length == UINT32_MAX) return false;  // not the form of 64 bits
    Cursor content = cursor.part(length);
    out->second_word = content.at();
    out->second = content.fixed<std::uint32_t>();
    out->content = content;
    return content.is_good();
}

bool read_cie(const Bytes& tables, const std::uint8_t* at, Cie* out) noexcept {
    Entry entry{Cursor({}, nullptr), nullptr, 0};
    if (!read_entry(tables, at, &entry) || entry.second != 0) return false;
    Cursor& cursor = entry.content;
    const auto version = cursor.fixed<std::uint8_t>();
    if (version != 1 && version != 3) return false;
    char augmentation[8] = {};
    for (std::size_t i = 0; (augmentation[i] = cursor.fixed<char>()) != '\0'; ++i)
        if (i + 1 == sizeof augmentation) return false;
    out->code_unit = cursor.unsigned_number();
    out->data_unit = cursor.signed_number();
    const std::uint64_t return_column = version == 1 ? cursor.fixed<std::uint8_t>() : cursor.unsigned_number();
    if (return_column != kReturnAddress || !cursor.is_good()) return false;
    out->has_augmentation = augmentation[0] == 'z';
    if (augmentation[0] != 'z' && augmentation[0] != '\0') return false;
    if (out->has_augmentation) {
        Cursor data = cursor.part(cursor.unsigned_number());
        for (const char* letter = augmentation + 1; *letter != '\0'; ++letter) {
            if (*letter == 'R') out->encoding = data.fixed<std::uint8_t>();
            if (*letter == 'L') data.skip(1);
            if (*letter == 'P') data.pointer(data.fixed<std::uint8_t>() & 0x0f, 0);
            if (*letter == 'S') out->is_signal = true;
            if (::strchr("RLPSB", *letter) == nullptr || !data.is_good()) return false;
        }
    }
    out->program = cursor;
    return cursor.is_good();
}

// The table of `.eh_frame_hdr`, in the only form that linkers write: pairs of 32 bits, relative to its start, sorted by
// the first byte of code.
const std::uint8_t* find_fde(const Bytes& tables, const std::uint8_t* header, std::uintptr_t pc) noexcept {
    const auto base = reinterpret_cast<std::uintptr_t>(header);
    Cursor cursor(tables, header);
    const auto version = cursor.fixed<std::uint8_t>(), frame = cursor.fixed<std::uint8_t>(),
               count_encoding = cursor.fixed<std::uint8_t>(), table = cursor.fixed<std::uint8_t>();
    if (version != 1 || table != 0x3b || count_encoding == 0xff || frame == 0xff) return nullptr;
    cursor.pointer(frame, base);
    const std::uint64_t count = cursor.pointer(count_encoding, base);
    if (!cursor.is_good() || count == 0 || count > (UINT32_MAX >> 3)) return nullptr;
    struct Pair {
        std::int32_t code, fde;
    };
    const Cursor rows = cursor.part(count * sizeof(Pair));
    if (!rows.is_good()) return nullptr;
    const auto pair_at = [&](std::uint64_t i) {
        Pair pair;
        ::memcpy(&pair, rows.at() + i * sizeof pair, sizeof pair);
        return pair;
    };
    std::uint64_t low = 0, high = count;  // the last one at or below pc is in [low, high)
    while (high - low > 1) {
        const std::uint64_t middle = low + (high - low) / 2;
        (base + static_cast<std::uintptr_t>(std::intptr_t{pair_at(middle).code}) <= pc ? low : high) = middle;
    }
    const std::uintptr_t at = base + static_cast<std::uintptr_t>(std::intptr_t{pair_at(low).fde});
    return reinterpret_cast<const std::uint8_t*>(at);
}

// The stack pointer of the caller is the CFA, and the return address is below it.
bool is_usual(const Row& row) noexcept {
    return row.return_address.how == Row::Saved::How::at_cfa && row.return_address.offset == -8 && row.is_rsp_known;
}

Rule in_short(const Row& row) noexcept {
    using How = Row::Saved::How;
    constexpr std::int64_t kFarthest = 1 << 30;
    Rule rule{};
    if (row.return_address.how == How::undefined) return rule.cfa = Rule::Cfa::end, rule;
    if (!is_usual(row) || row.cfa_offset < -kFarthest || row.cfa_offset > kFarthest) return rule;
    const std::int64_t slot = row.rbp.offset / 8;
    if (row.cfa_offset % 8 != 0 || (row.rbp.how == How::at_cfa && slot >= 0)) return rule;
    const bool is_saved = row.rbp.how == How::at_cfa || row.rbp.how == How::at_rbp;
    if (is_saved && (row.rbp.offset % 8 != 0 || slot < INT8_MIN || slot > INT8_MAX)) return rule;
    if (!is_saved && row.rbp.how != How::same) return rule;
    const bool is_offset = row.cfa == Row::Cfa::offset;
    if (is_offset && row.cfa_register != kRsp && row.cfa_register != kRbp) return rule;
    if (row.cfa == Row::Cfa::other) return rule;
    rule.offset = static_cast<std::int32_t>(row.cfa_offset);
    rule.cfa = !is_offset ? Rule::Cfa::at_rbp : row.cfa_register == kRsp ? Rule::Cfa::from_rsp : Rule::Cfa::from_rbp;
    rule.rbp_slot = static_cast<std::int8_t>(is_saved ? slot : 0);
    rule.rbp = row.rbp.how == How::at_cfa ? Rule::Rbp::at_cfa : is_saved ? Rule::Rbp::at_rbp : Rule::Rbp::same;
    return rule;
}

// Where the table has no rule that a walk could follow, the function's first instructions may show one: `push %rbp; mov
// %rsp, %rbp` makes a frame pointer, which every call of the function finds in place.
Rule by_frame_pointer(const Bytes& code, std::uintptr_t function) noexcept {
    static constexpr std::uint8_t kBranchTarget[] = {0xf3, 0x0f, 0x1e, 0xfa}, kGcc[] = {0x55, 0x48, 0x89, 0xe5},
                                  kOther[] = {0x55, 0x48, 0x8b, 0xec};
    Cursor cursor(code, reinterpret_cast<const std::uint8_t*>(function));
    Cursor probe = cursor;
    const auto is = [](Cursor& at, const std::uint8_t (&what)[4]) {
        const auto word = at.fixed<std::uint32_t>();
        return at.is_good() && ::memcmp(&word, what, sizeof word) == 0;
    };
    if (is(probe, kBranchTarget)) cursor = probe;
    Cursor again = cursor;
    if (!is(cursor, kGcc) && !is(again, kOther)) return {};
    return {16, -2, Rule::Cfa::from_rbp, Rule::Rbp::at_cfa, Rule::kByPointer};
}

}  // namespace

Rule RuleReader::rule_of(const Bytes& tables, const std::uint8_t* header, const Bytes& code,
                         std::uintptr_t return_address) noexcept {
    // A call may be the last instruction of its function: then the return address is in the next one.
    const std::uintptr_t pc = return_address - 1;
    const std::uint8_t* const at = find_fde(tables, header, pc);
    if (at == nullptr) return {};
    if (at != fde_ || !program_.is_ahead(pc)) {
        fde_ = nullptr;
        if (!begin(tables, header, at)) return {};
        fde_ = at;
    }
    if (pc < start_ || pc - start_ >= bytes_) return {};
    const Row* const row = is_understood_ ? program_.row_of(pc) : nullptr;
    if (row == nullptr) fde_ = nullptr;
    const Rule rule = row != nullptr ? in_short(*row) : Rule{};
    const bool may_have_pointer = rule.cfa == Rule::Cfa::unknown && (row == nullptr || is_usual(*row));
    return may_have_pointer ? by_frame_pointer(code, start_) : rule;
}

// Reads what a function's entry says before its instructions.
bool RuleReader::begin(const Bytes& tables, const std::uint8_t* header, const std::uint8_t* at) noexcept {
    Entry fde{Cursor({}, nullptr), nullptr, 0};
    if (!read_entry(tables, at, &fde) || fde.second == 0) return false;
    Cie cie;
    const std::uintptr_t cie_at = reinterpret_cast<std::uintptr_t>(fde.second_word) - fde.second;
    if (!read_cie(tables, reinterpret_cast<const std::uint8_t*>(cie_at), &cie) || cie.is_signal) return false;
    Cursor& content = fde.content;
    start_ = content.pointer(cie.encoding, reinterpret_cast<std::uintptr_t>(header));
    bytes_ = content.pointer(cie.encoding & 0x0f, 0);
    if (cie.has_augmentation) content.skip(content.unsigned_number());
    if (!content.is_good() || (cie.encoding & 0x80) != 0) return false;
    is_understood_ = program_.begin(cie);
    program_.begin_function(content, start_);
    return true;
}

}  // namespace hiwater::unwind
