// DWARF 5, chapter 6.4, as far as System V's AMD64 supplement and the "LSB Core" use it in `.eh_frame`.
#include "unwind/cfi.h"

#include <string.h>

namespace hiwater::unwind {

namespace {

constexpr std::uint64_t kRbp = 6, kRsp = 7, kReturnAddress = 16;

// A position in bytes that can be read. Past their end it is bad for good, and reads zeros.
class Cursor {
public:
    Cursor(const Bytes& bytes, const std::uint8_t* at) noexcept : bytes_(bytes), at_(at) {
        if (at < bytes.start || at > bytes.end) fail();
    }

    bool is_good() const noexcept { return is_good_; }
    bool is_at_end() const noexcept { return at_ == bytes_.end; }
    const std::uint8_t* at() const noexcept { return at_; }
    void fail() noexcept {
        is_good_ = false;
        at_ = bytes_.end;
    }
    void skip(std::uint64_t count) noexcept {
        if (count > left()) return fail();
        at_ += count;
    }
    // The next `count` bytes alone, which this cursor goes past.
    Cursor part(std::uint64_t count) noexcept {
        const std::uint8_t* const from = at_;
        skip(count);
        Cursor inner({is_good_ ? from : bytes_.end, at_}, is_good_ ? from : bytes_.end);
        if (!is_good_) inner.fail();
        return inner;
    }

    template <typename T>
    T fixed() noexcept {
        T value{};
        if (sizeof value > left()) return fail(), value;
        ::memcpy(&value, at_, sizeof value);
        at_ += sizeof value;
        return value;
    }
    std::uint64_t unsigned_number() noexcept {
        std::uint64_t value = 0;
        for (unsigned shift = 0;; shift += 7) {
            const auto byte = fixed<std::uint8_t>();
            if (shift < 64) value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
            if ((byte & 0x80) == 0) return value;
        }
    }
    std::int64_t signed_number() noexcept {
        std::uint64_t value = 0;
        unsigned shift = 0;
        std::uint8_t byte;
        do {
            byte = fixed<std::uint8_t>();
            if (shift < 64) value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
            shift += 7;
        } while ((byte & 0x80) != 0);
        if (shift < 64 && (byte & 0x40) != 0) value |= ~std::uint64_t{0} << shift;
        return static_cast<std::int64_t>(value);
    }
    // A pointer in one of the encodings of `.eh_frame` (DW_EH_PE_…). One that is indirect is left unfollowed.
    std::uint64_t pointer(std::uint8_t encoding, std::uintptr_t data_base) noexcept {
        const auto here = reinterpret_cast<std::uintptr_t>(at_);
        const std::uint64_t value = number(encoding & 0x0f);
        switch (encoding & 0x70) {
            case 0x00:
                return value;
            case 0x10:
                return here + value;
            case 0x30:
                return data_base + value;
            default:
                return fail(), 0;
        }
    }

private:
    std::uint64_t left() const noexcept { return static_cast<std::uint64_t>(bytes_.end - at_); }
    std::uint64_t number(std::uint8_t format) noexcept {
        switch (format) {
            case 0x00:
            case 0x04:
            case 0x0c:
                return fixed<std::uint64_t>();
            case 0x01:
                return unsigned_number();
            case 0x02:
                return fixed<std::uint16_t>();
            case 0x03:
                return fixed<std::uint32_t>();
            case 0x09:
                return static_cast<std::uint64_t>(signed_number());
            case 0x0a:
                return static_cast<std::uint64_t>(std::int64_t{fixed<std::int16_t>()});
            case 0x0b:
                return static_cast<std::uint64_t>(std::int64_t{fixed<std::int32_t>()});
            default:
                return fail(), 0;
        }
    }

    Bytes bytes_;
    const std::uint8_t* at_;
    bool is_good_ = true;
};

// What one row of a function's table says of the registers that a walk needs.
struct Row {
    struct Saved {
        enum class How : std::uint8_t { same, at_cfa, at_rbp, undefined, other } how;
        std::int64_t offset;
    };
    enum class Cfa : std::uint8_t { offset, at_rbp, other } cfa = Cfa::other;
    std::uint64_t cfa_register = 0;
    std::int64_t cfa_offset = 0;
    Saved rbp{Saved::How::same, 0}, return_address{Saved::How::same, 0};
    bool is_rsp_known = true;

    Saved* of(std::uint64_t dwarf_register) noexcept {
        return dwarf_register == kRbp ? &rbp : dwarf_register == kReturnAddress ? &return_address : nullptr;
    }
    void save(std::uint64_t dwarf_register, Saved saved) noexcept {
        if (Saved* const at = of(dwarf_register)) *at = saved;
        if (dwarf_register == kRsp) is_rsp_known = false;
    }
};

struct Cie {
    std::uint64_t code_unit = 0;
    std::int64_t data_unit = 0;
    std::uint8_t encoding = 0;
    bool has_augmentation = false, is_signal = false;
    Cursor program;
};

// The two expressions that compilers write for functions which realign their stack: "rbp + N", and the word there.
bool is_rbp_plus(Cursor& expression, std::int64_t* offset) noexcept {
    if (expression.fixed<std::uint8_t>() != 0x70 + kRbp) return false;  // DW_OP_breg6
    *offset = expression.signed_number();
    return expression.is_good();
}

// Runs the instructions up to the row of `pc`.
class Program {
public:
    Program(const Cie& cie, Row& row) noexcept : cie_(cie), row_(row) {}

    // The address reached, or one above `until`: the row is that of `until`. False for what is not understood.
    bool run(Cursor code, std::uintptr_t from, std::uintptr_t until) noexcept {
        location_ = from;
        while (code.is_good() && !code.is_at_end()) {
            if (!step(code) || !code.is_good()) return false;
            if (location_ > until) return true;
            row_ = next_;
        }
        return code.is_good();
    }
    void begin(const Row& row) noexcept { row_ = next_ = row; }
    void end_of_cie() noexcept { initial_ = row_; }

private:
    static constexpr int kMostRemembered = 8;

    bool step(Cursor& code) noexcept {
        const auto op = code.fixed<std::uint8_t>();
        const std::uint64_t low = op & 0x3f;
        switch (op & 0xc0) {
            case 0x40:
                return advance(low);
            case 0x80:
                return save_at_cfa(low, static_cast<std::int64_t>(code.unsigned_number()) * cie_.data_unit);
            case 0xc0:
                return restore(low);
            default:
                return extended(op, code);
        }
    }
    bool extended(std::uint8_t op, Cursor& code) noexcept {
        const auto unsigned_offset = [&] { return static_cast<std::int64_t>(code.unsigned_number()); };
        switch (op) {
            case 0x00:
                return true;
            case 0x01:
                return location_ = code.pointer(cie_.encoding, 0), true;
            case 0x02:
                return advance(code.fixed<std::uint8_t>());
            case 0x03:
                return advance(code.fixed<std::uint16_t>());
            case 0x04:
                return advance(code.fixed<std::uint32_t>());
            case 0x06:
                return restore(code.unsigned_number());
            case 0x0a:
                return remember();
            case 0x0b:
                return recall();
            case 0x0e:
                return next_.cfa_offset = unsigned_offset(), true;
            case 0x13:
                return next_.cfa_offset = code.signed_number() * cie_.data_unit, true;
            case 0x0d:
                return define(code.unsigned_number(), next_.cfa_offset);
            case 0x0f:
                return define_by(code);
            case 0x2e:
                return code.unsigned_number(), true;  // DW_CFA_GNU_args_size
            default:
                break;
        }
        const std::uint64_t number = code.unsigned_number();
        using How = Row::Saved::How;
        switch (op) {
            case 0x05:
                return save_at_cfa(number, unsigned_offset() * cie_.data_unit);
            case 0x11:
                return save_at_cfa(number, code.signed_number() * cie_.data_unit);
            case 0x2f:
                return save_at_cfa(number, -unsigned_offset() * cie_.data_unit);
            case 0x07:
                return next_.save(number, {How::undefined, 0}), true;
            case 0x08:
                return next_.save(number, {How::same, 0}), true;
            case 0x09:
                return code.unsigned_number(), next_.save(number, {How::other, 0}), true;
            case 0x0c:
                return define(number, unsigned_offset());
            case 0x12:
                return define(number, code.signed_number() * cie_.data_unit);
            case 0x10:
                return save_by(number, code);
            case 0x14:
                return unsigned_offset(), next_.save(number, {How::other, 0}), true;
            case 0x15:
                return code.signed_number(), next_.save(number, {How::other, 0}), true;
            case 0x16:
                return code.skip(code.unsigned_number()), next_.save(number, {How::other, 0}), true;
            default:
                return false;
        }
    }
    bool advance(std::uint64_t units) noexcept {
        location_ += units * cie_.code_unit;
        return true;
    }
    bool save_at_cfa(std::uint64_t number, std::int64_t offset) noexcept {
        next_.save(number, {Row::Saved::How::at_cfa, offset});
        return true;
    }
    bool restore(std::uint64_t number) noexcept {
        if (Row::Saved* const at = next_.of(number)) *at = *initial_.of(number);
        if (number == kRsp) next_.is_rsp_known = initial_.is_rsp_known;
        return true;
    }
    bool remember() noexcept {
        if (remembered_ == kMostRemembered) return false;
        kept_[remembered_++] = next_;
        return true;
    }
    bool recall() noexcept {
        if (remembered_ == 0) return false;
        next_ = kept_[--remembered_];
        return true;
    }
    bool define(std::uint64_t number, std::int64_t offset) noexcept {
        next_.cfa = Row::Cfa::offset;
        next_.cfa_register = number;
        next_.cfa_offset = offset;
        return true;
    }
    bool define_by(Cursor& code) noexcept {
        Cursor expression = code.part(code.unsigned_number());
        next_.cfa = Row::Cfa::other;
        std::int64_t offset = 0;
        if (is_rbp_plus(expression, &offset) && expression.fixed<std::uint8_t>() == 0x06 && expression.is_good() &&
            expression.is_at_end()) {  // DW_OP_deref
            next_.cfa = Row::Cfa::at_rbp;
            next_.cfa_offset = offset;
        }
        return true;
    }
    bool save_by(std::uint64_t number, Cursor& code) noexcept {
        Cursor expression = code.part(code.unsigned_number());
        Row::Saved saved{Row::Saved::How::other, 0};
        if (is_rbp_plus(expression, &saved.offset) && expression.is_at_end()) saved.how = Row::Saved::How::at_rbp;
        next_.save(number, saved);
        return true;
    }

    const Cie& cie_;
    Row& row_;
    Row next_, initial_, kept_[kMostRemembered];
    int remembered_ = 0;
    std::uintptr_t location_ = 0;
};

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

Rule in_short(const Row& row) noexcept {
    using How = Row::Saved::How;
    constexpr std::int64_t kFarthest = 1 << 30;
    Rule rule{};
    if (row.return_address.how == How::undefined) return rule.cfa = Rule::Cfa::end, rule;
    const bool is_usual = row.return_address.how == How::at_cfa && row.return_address.offset == -8 && row.is_rsp_known;
    if (!is_usual || row.cfa_offset < -kFarthest || row.cfa_offset > kFarthest) return rule;
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

Rule rule_of(const Bytes& tables, const std::uint8_t* header, const Bytes& code,
             std::uintptr_t return_address) noexcept {
    // A call may be the last instruction of its function: then the return address is in the next one.
    const std::uintptr_t pc = return_address - 1;
    const std::uint8_t* const at = find_fde(tables, header, pc);
    Entry fde{Cursor({}, nullptr), nullptr, 0};
    if (at == nullptr || !read_entry(tables, at, &fde) || fde.second == 0) return {};
    Cie cie{0, 0, 0, false, false, Cursor({}, nullptr)};
    const std::uintptr_t cie_at = reinterpret_cast<std::uintptr_t>(fde.second_word) - fde.second;
    if (!read_cie(tables, reinterpret_cast<const std::uint8_t*>(cie_at), &cie) || cie.is_signal) return {};
    Cursor& content = fde.content;
    const auto base = reinterpret_cast<std::uintptr_t>(header);
    const std::uint64_t start = content.pointer(cie.encoding, base), bytes = content.pointer(cie.encoding & 0x0f, 0);
    if (cie.has_augmentation) content.skip(content.unsigned_number());
    if (!content.is_good() || (cie.encoding & 0x80) != 0 || pc < start || pc - start >= bytes) return {};
    Row row;
    Program program(cie, row);
    program.begin({});
    bool is_read = program.run(cie.program, 0, UINTPTR_MAX);
    program.end_of_cie();
    is_read = is_read && program.run(content, start, pc);
    const Rule rule = is_read ? in_short(row) : Rule{};
    return rule.cfa == Rule::Cfa::unknown ? by_frame_pointer(code, start) : rule;
}

}  // namespace hiwater::unwind
