// DWARF 5, chapter 6.4, as far as System V's AMD64 supplement and the "LSB Core" use it in `.eh_frame`.
#pragma once

#include <string.h>

#include <cstddef>
#include <cstdint>

namespace hiwater::unwind {

// The bytes of a module that can be read, which hold both sections.
struct Bytes {
    const std::uint8_t* start = nullptr;
    const std::uint8_t* end = nullptr;
};

constexpr std::uint64_t kRbp = 6, kRsp = 7, kReturnAddress = 16;

// A position in bytes that can be read. Past their end it is bad for good, and reads zeros.
class Cursor {
public:
    Cursor() noexcept = default;
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
    const std::uint8_t* at_ = nullptr;
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
inline bool is_rbp_plus(Cursor& expression, std::int64_t* offset) noexcept {
    if (expression.fixed<std::uint8_t>() != 0x70 + kRbp) return false;  // DW_OP_breg6
    *offset = expression.signed_number();
    return expression.is_good();
}

// The instructions of a function, which are run row by row. Its rows are mostly asked for in the order of their
// addresses, so each is sought from the one before on.
class Program {
public:
    // Instructions of all functions that share them come first. False for what is not understood.
    bool begin(const Cie& cie) noexcept {
        *this = {};
        cie_ = cie;
        code_ = cie.program;
        if (!run(UINTPTR_MAX)) return false;
        initial_ = row_;
        return true;
    }
    void begin_function(const Cursor& code, std::uintptr_t start) noexcept {
        code_ = code;
        from_ = to_ = start;
    }
    // Whether the row of `pc` is not behind.
    bool is_ahead(std::uintptr_t pc) const noexcept { return pc >= from_; }
    // Null for what is not understood.
    const Row* row_of(std::uintptr_t pc) noexcept { return run(pc) ? &row_ : nullptr; }

private:
    static constexpr int kMostRemembered = 8;

    // Until the row that contains an address is complete, or the code ends.
    bool run(std::uintptr_t until) noexcept {
        while (to_ <= until && code_.is_good() && !code_.is_at_end()) {
            from_ = to_;
            while (to_ == from_ && !code_.is_at_end())
                if (!step(code_) || !code_.is_good()) return false;
        }
        return code_.is_good();
    }
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
                return to_ = code.pointer(cie_.encoding, 0), true;
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
                return row_.cfa_offset = unsigned_offset(), true;
            case 0x13:
                return row_.cfa_offset = code.signed_number() * cie_.data_unit, true;
            case 0x0d:
                return define(code.unsigned_number(), row_.cfa_offset);
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
                return row_.save(number, {How::undefined, 0}), true;
            case 0x08:
                return row_.save(number, {How::same, 0}), true;
            case 0x09:
                return code.unsigned_number(), row_.save(number, {How::other, 0}), true;
            case 0x0c:
                return define(number, unsigned_offset());
            case 0x12:
                return define(number, code.signed_number() * cie_.data_unit);
            case 0x10:
                return save_by(number, code);
            case 0x14:
                return unsigned_offset(), row_.save(number, {How::other, 0}), true;
            case 0x15:
                return code.signed_number(), row_.save(number, {How::other, 0}), true;
            case 0x16:
                return code.skip(code.unsigned_number()), row_.save(number, {How::other, 0}), true;
            default:
                return false;
        }
    }
    bool advance(std::uint64_t units) noexcept {
        to_ += units * cie_.code_unit;
        return true;
    }
    bool save_at_cfa(std::uint64_t number, std::int64_t offset) noexcept {
        row_.save(number, {Row::Saved::How::at_cfa, offset});
        return true;
    }
    bool restore(std::uint64_t number) noexcept {
        if (Row::Saved* const at = row_.of(number)) *at = *initial_.of(number);
        if (number == kRsp) row_.is_rsp_known = initial_.is_rsp_known;
        return true;
    }
    bool remember() noexcept {
        if (remembered_ == kMostRemembered) return false;
        kept_[remembered_++] = row_;
        return true;
    }
    bool recall() noexcept {
        if (remembered_ == 0) return false;
        row_ = kept_[--remembered_];
        return true;
    }
    bool define(std::uint64_t number, std::int64_t offset) noexcept {
        row_.cfa = Row::Cfa::offset;
        row_.cfa_register = number;
        row_.cfa_offset = offset;
        return true;
    }
    bool define_by(Cursor& code) noexcept {
        Cursor expression = code.part(code.unsigned_number());
        row_.cfa = Row::Cfa::other;
        std::int64_t offset = 0;
        if (is_rbp_plus(expression, &offset) && expression.fixed<std::uint8_t>() == 0x06 && expression.is_good() &&
            expression.is_at_end()) {  // DW_OP_deref
            row_.cfa = Row::Cfa::at_rbp;
            row_.cfa_offset = offset;
        }
        return true;
    }
    bool save_by(std::uint64_t number, Cursor& code) noexcept {
        Cursor expression = code.part(code.unsigned_number());
        Row::Saved saved{Row::Saved::How::other, 0};
        if (is_rbp_plus(expression, &saved.offset) && expression.is_at_end()) saved.how = Row::Saved::How::at_rbp;
        row_.save(number, saved);
        return true;
    }

    Cie cie_;
    Cursor code_;
    Row row_, initial_, kept_[kMostRemembered];  // `row_` is of the addresses from `from_` to `to_`
    int remembered_ = 0;
    std::uintptr_t from_ = 0, to_ = 0;
};

}  // namespace hiwater::unwind
