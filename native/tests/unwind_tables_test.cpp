// Tables made byte by byte: one that is right, and such as no compiler writes. What is not understood is no rule.
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "support.h"
#include "unwind/cfi.h"

namespace hiwater::tests {

namespace {

using unwind::Rule;

constexpr std::uint8_t kPushed[] = {0x41, 0x0e, 16, 0x86, 2};  // from the second byte on, as after `push %rbp`

// `.eh_frame_hdr` and `.eh_frame` with one function of 64 bytes.
struct Tables {
    std::uint8_t version = 1, count_encoding = 0x03, table_encoding = 0x3b;  // 4 bytes unsigned; pairs
    std::uint64_t count = 1;
    std::string augmentation = "zR";
    std::uint8_t cie_version = 1, return_column = 16, pointer_encoding = 0x1b;
    std::uint32_t cie_length_more = 0, fde_length_more = 0, cie_at_less = 0;
    std::vector<std::uint8_t> program{std::begin(kPushed), std::end(kPushed)};

    // The rule at a byte of the function.
    Rule rule(std::uintptr_t at = 32) const {
        std::vector<std::uint8_t> bytes{version, 0x1b, count_encoding, table_encoding};
        const auto add = [&](std::uint64_t value, std::size_t size) {
            for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> 8 * i));
        };
        const auto set = [&](std::size_t where, std::uint32_t value) { ::memcpy(&bytes[where], &value, sizeof value); };
        add(0, 4);
        add(count, count_encoding == 0x04 ? 8 : 4);
        const std::size_t pair = bytes.size();
        add(0, 8);
        const std::size_t cie = bytes.size();
        add(0, 8);
        bytes.push_back(cie_version);
        for (const char letter : augmentation) bytes.push_back(static_cast<std::uint8_t>(letter));
        for (const std::uint8_t byte :
             {std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{0x78}, return_column, std::uint8_t{1}, pointer_encoding,
              std::uint8_t{0x0c}, std::uint8_t{7}, std::uint8_t{8}, std::uint8_t{0x90}, std::uint8_t{1}})
            bytes.push_back(byte);
        set(cie, static_cast<std::uint32_t>(bytes.size() - cie - 4) + cie_length_more);
        const std::size_t fde = bytes.size();
        add(0, 4);
        add(bytes.size() - cie - cie_at_less, 4);
        const std::size_t start = bytes.size();
        add(0, 4);
        add(64, 4);
        bytes.push_back(0);
        bytes.insert(bytes.end(), program.begin(), program.end());
        set(fde, static_cast<std::uint32_t>(bytes.size() - fde - 4) + fde_length_more);
        const std::size_t code = bytes.size();
        set(start, static_cast<std::uint32_t>(code - start));
        set(pair, static_cast<std::uint32_t>(code));
        set(pair + 4, static_cast<std::uint32_t>(fde));
        // A copy on the heap, which a sanitizer watches the ends of.
        const std::unique_ptr<std::uint8_t[]> copy(new std::uint8_t[bytes.size()]);
        ::memcpy(copy.get(), bytes.data(), bytes.size());
        const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(copy.get()) + code + at;
        return unwind::RuleReader().rule_of({copy.get(), copy.get() + bytes.size()}, copy.get(), {}, address);
    }
};

std::vector<std::uint8_t> joined(std::initializer_list<std::vector<std::uint8_t>> parts) {
    std::vector<std::uint8_t> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

}  // namespace

TEST_SUITE_BEGIN("unwind");

TEST_CASE("a table that is right has rules for the bytes of its function alone") {
    const Rule pushed{16, -2, Rule::Cfa::from_rsp, Rule::Rbp::at_cfa, 0},
        begun{8, 0, Rule::Cfa::from_rsp, Rule::Rbp::same, 0};
    CHECK(Tables().rule() == pushed);
    CHECK(Tables().rule(64) == pushed);  // of a call that is the last instruction
    CHECK(Tables().rule(1) == begun);
    CHECK(Tables().rule(65) == Rule{});
    CHECK(Tables().rule(0) == Rule{});
    Tables tables;
    tables.count_encoding = 0x04;
    CHECK(tables.rule() == pushed);
    tables.program = joined({std::vector<std::uint8_t>(8, 0x0a), {std::begin(kPushed), std::end(kPushed)}, {0x0b}});
    CHECK(tables.rule() == begun);
}

TEST_CASE("what is not understood of a table is no rule") {
    const auto is_refused = [](auto change) {
        Tables tables;
        change(tables);
        return tables.rule() == Rule{};
    };
    CHECK(is_refused([](Tables& t) { t.version = 2; }));
    CHECK(is_refused([](Tables& t) { t.table_encoding = 0x1b; }));
    CHECK(is_refused([](Tables& t) { t.count_encoding = 0xff; }));
    CHECK(is_refused([](Tables& t) { t.count = 0; }));
    CHECK(is_refused([](Tables& t) { t.count = 1000; }));
    CHECK(is_refused([](Tables& t) { t.count_encoding = 0x04, t.count = (1ULL << 61) + 1; }));  // 8 bytes, counted so
    CHECK(is_refused([](Tables& t) { t.cie_version = 4; }));
    CHECK(is_refused([](Tables& t) { t.return_column = 17; }));
    CHECK(is_refused([](Tables& t) { t.pointer_encoding = 0x9b; }));  // indirect
    CHECK(is_refused([](Tables& t) { t.augmentation = "eh"; }));
    CHECK(is_refused([](Tables& t) { t.augmentation = "zRX"; }));
    CHECK(is_refused([](Tables& t) { t.augmentation = "zRBBBBBBBBBBBB"; }));
    CHECK(is_refused([](Tables& t) { t.augmentation = "zRS"; }));
    CHECK(is_refused([](Tables& t) { t.fde_length_more = 1 << 20; }));
    CHECK(is_refused([](Tables& t) { t.cie_length_more = 1 << 20; }));
    CHECK(is_refused([](Tables& t) { t.cie_at_less = 4; }));
    CHECK(is_refused([](Tables& t) { t.program = {0x3f}; }));
    CHECK(is_refused([](Tables& t) { t.program = {0x0e, 12}; }));
    CHECK(is_refused([](Tables& t) { t.program = {0x0e}; }));
    CHECK(is_refused([](Tables& t) { t.program = {0x0b}; }));
    CHECK(is_refused([](Tables& t) { t.program = std::vector<std::uint8_t>(9, 0x0a); }));
}

TEST_SUITE_END();

}  // namespace hiwater::tests
