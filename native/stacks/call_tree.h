// Interned call paths. Equal paths share a node, equal code objects a code, equal texts a string; the records are the
// capture's.
//
// A node is found by (parent, code, line). New stacks are chains, so the record behind a node's is often its first
// child: it is found there, and in no hash table. Code objects are identified by address while they live. forget_code()
// is called when one dies, and the same function defined again gets the code record it had, so a program that makes
// code at run time does not grow us.
#pragma once

#include <cstdint>
#include <string_view>

#include "capture/capture_file.h"
#include "base/id_set.h"

namespace hiwater {

// Address -> number.
class AddressMap {
    static std::uint64_t hash_of(const void* address) { return mix(reinterpret_cast<std::uintptr_t>(address)); }
    struct Slot {
        const void* address;
        std::uint32_t number;
        bool is_free() const { return address == nullptr; }
        std::uint64_t hash() const { return hash_of(address); }
    };
    static auto is_at(const void* address) {
        return [address](const Slot& slot) { return slot.address == address; };
    }

public:
    std::uint32_t find(const void* address) const {
        const Slot* found = slots_.find(hash_of(address), is_at(address));
        return found == nullptr ? 0 : found->number;
    }
    void put(const void* address, std::uint32_t number) { slots_.put({address, number}, is_at(address)); }
    bool remove(const void* address) { return !slots_.remove(hash_of(address), is_at(address)).is_free(); }
    std::size_t size() const { return slots_.size(); }
    void reset() noexcept { slots_.reset(); }
    std::size_t own_bytes() const { return slots_.own_bytes(); }

private:
    OpenTable<Slot> slots_;
};

class CallTree {
public:
    // Starts empty tables in a new capture.
    void attach(capture::CaptureFile& file) {
        bytes_.attach(file, capture::Table::string_bytes);
        strings_.attach(file, capture::Table::strings);
        codes_.attach(file, capture::Table::codes);
        nodes_.attach(file, capture::Table::nodes);
        forget_everything();
        strings_.append({});
        codes_.append({});
        nodes_.append({});
    }

    std::uint32_t string(std::string_view text) {
        const std::uint64_t hash = hash_text(text);
        if (const std::uint32_t known = find_string(text, hash)) return known;
        capture::StringRecord record{append_text(text), static_cast<std::uint32_t>(text.size()), 0};
        const auto id = static_cast<std::uint32_t>(strings_.append(record));
        string_set_.add(id, hash);
        return id;
    }

    std::uint32_t code(std::string_view function, std::string_view file, std::uint32_t first_line,
                       capture::CodeKind kind, capture::Owner owner = capture::Owner::library) {
        const capture::CodeRecord record{string(function), string(file), first_line, static_cast<std::uint16_t>(kind),
                                         static_cast<std::uint16_t>(owner)};
        const std::uint64_t hash = hash_code(record);
        const std::uint32_t known = code_set_.find(hash, [&](std::uint32_t id) { return same(codes_[id], record); });
        if (known != 0) return known;
        const auto id = static_cast<std::uint32_t>(codes_.append(record));
        code_set_.add(id, hash);
        return id;
    }

    std::uint32_t child(std::uint32_t parent, std::uint32_t code, std::uint32_t line) {
        const capture::NodeRecord record{parent, code, line, 0};
        if (parent + 1 >= nodes_.size()) return static_cast<std::uint32_t>(nodes_.append(record));
        if (same(nodes_[parent + 1], record)) return parent + 1;
        const std::uint64_t hash = hash_node(record);
        const std::uint32_t known = node_set_.find(hash, [&](std::uint32_t id) { return same(nodes_[id], record); });
        if (known != 0) return known;
        const auto id = static_cast<std::uint32_t>(nodes_.append(record));
        node_set_.add(id, hash);
        return id;
    }

    // A child that has none itself. A node mostly has few of them, soon after it was made: these are linked to it, and
    // in no hash table.
    std::uint32_t joint(std::uint32_t parent, std::uint32_t code, std::uint32_t line) {
        const capture::NodeRecord record{parent, code, line, 0};
        if (parent + 1 == nodes_.size() || same(nodes_[parent + 1], record)) return child(parent, code, line);
        std::uint32_t linked = 0;
        for (std::uint32_t id = link_of(parent); id != 0; id = link_of(id), ++linked)
            if (same(nodes_[id], record)) return id;
        if (linked == kMostLinked) return child(parent, code, line);
        const auto id = static_cast<std::uint32_t>(nodes_.size());
        if (id >= links_.size()) links_.resize(id + 1);
        nodes_.append(record);
        links_[id] = links_[parent];
        return links_[parent] = id;
    }

    // The code of this kind and function without a file, or 0: nothing is added.
    std::uint32_t find_code(std::string_view function, capture::CodeKind kind) const {
        const std::uint32_t text = find_string(function, hash_text(function)), no_file = find_string({}, hash_text({}));
        if (text == 0 || no_file == 0) return 0;
        const capture::CodeRecord record{text, no_file, 0, static_cast<std::uint16_t>(kind), 0};
        return code_set_.find(hash_code(record), [&](std::uint32_t id) { return same(codes_[id], record); });
    }

    // Gives a node, and with it all that is below, another code. There may be a second node like it afterwards; child()
    // then gives either.
    void change_code(std::uint32_t id, std::uint32_t code) {
        capture::NodeRecord& node = nodes_[id];
        if (!is_behind_parent(id)) node_set_.remove(id, hash_node(node));
        __atomic_store_n(&node.code, code, __ATOMIC_RELEASE);
        if (!is_behind_parent(id)) node_set_.add(id, hash_node(node));
    }

    std::uint32_t known_code(const void* object) const { return by_address_.find(object); }
    void remember_code(const void* object, std::uint32_t code) { by_address_.put(object, code); }
    bool forget_code(const void* object) { return by_address_.remove(object); }

    // Numbers that were read from the file are checked, here and in text_of(): somebody else may have written to it.
    const capture::NodeRecord& node(std::uint32_t id) const { return nodes_[id < nodes_.size() ? id : 0]; }
    const capture::CodeRecord& code_record(std::uint32_t id) const { return codes_[id < codes_.size() ? id : 0]; }
    std::uint64_t node_count() const { return nodes_.size(); }
    std::uint64_t code_count() const { return codes_.size(); }

    // The text of a string; valid until the capture is closed. Texts do not cross extents.
    std::string_view text_of(std::uint32_t id) const {
        if (id >= strings_.size()) return {};
        const capture::StringRecord& record = strings_[id];
        const bool is_there =
            record.length != 0 && record.offset < bytes_.size() && record.length <= bytes_.size() - record.offset;
        return is_there ? std::string_view(&bytes_[record.offset], record.length) : std::string_view();
    }

    void forget_everything() noexcept {
        string_set_.reset();
        code_set_.reset();
        node_set_.reset();
        by_address_.reset();
        links_.reset();
    }
    std::size_t own_bytes() const {
        return string_set_.own_bytes() + code_set_.own_bytes() + node_set_.own_bytes() + by_address_.own_bytes() +
               links_.capacity_bytes();
    }

    // O(everything). Every parent is older than its child, every reference in range, every record found by its own key.
    bool is_consistent() const {
        std::uint32_t in_no_set = 0;
        for (std::uint32_t id = 1; id < nodes_.size(); ++id) {
            const capture::NodeRecord& n = nodes_[id];
            if (n.parent >= id || n.code == 0 || n.code >= codes_.size()) return false;
            const bool is_in_set = node_set_.find(hash_node(n), [&](std::uint32_t other) { return other == id; }) != 0;
            const bool is_found = is_behind_parent(id) || is_linked(id);
            if (is_in_set == is_found) return false;
            in_no_set += is_found ? 1 : 0;
        }
        for (std::uint32_t id = 1; id < codes_.size(); ++id)
            if (codes_[id].function >= strings_.size() || codes_[id].file >= strings_.size()) return false;
        return node_set_.size() + in_no_set + 1 == nodes_.size() && code_set_.size() + 1 == codes_.size();
    }

private:
    static constexpr std::uint32_t kMostLinked = 8;

    bool is_behind_parent(std::uint32_t id) const { return nodes_[id].parent + 1 == id; }
    std::uint32_t link_of(std::uint32_t id) const { return id < links_.size() ? links_[id] : 0; }
    bool is_linked(std::uint32_t id) const {
        std::uint32_t linked = link_of(nodes_[id].parent);
        while (linked != 0 && linked != id) linked = link_of(linked);
        return linked != 0;
    }
    std::uint32_t find_string(std::string_view text, std::uint64_t hash) const {
        return string_set_.find(hash, [&](std::uint32_t id) { return text_of(id) == text; });
    }
    static bool same(const capture::CodeRecord& a, const capture::CodeRecord& b) {
        return a.function == b.function && a.file == b.file && a.first_line == b.first_line && a.kind == b.kind &&
               a.owner == b.owner;
    }
    static bool same(const capture::NodeRecord& a, const capture::NodeRecord& b) {
        return a.parent == b.parent && a.code == b.code && a.line == b.line;
    }
    static std::uint64_t hash_code(const capture::CodeRecord& c) {
        return mix(mix(static_cast<std::uint64_t>(c.function) << 32 | c.file) ^
                   (static_cast<std::uint64_t>(c.first_line) << 8 | std::uint64_t{c.kind} << 4 | c.owner));
    }
    static std::uint64_t hash_node(const capture::NodeRecord& n) {
        // Lines of one function that follow each other, as a module's do while it is imported, are found in one line of
        // the cache.
        constexpr std::uint32_t together = 7;
        return (mix(mix(static_cast<std::uint64_t>(n.parent) << 32 | n.code) ^ n.line / (together + 1)) &
                ~std::uint64_t{together}) |
               (n.line & together);
    }
    static std::uint64_t hash_text(std::string_view text) {  // FNV-1a, 64 bit
        std::uint64_t h = 0xcbf29ce484222325ULL;
        for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
        return mix(h);
    }

    // Copies a text behind the others, never across two extents: the rest of an extent that is too short is left empty.
    std::uint64_t append_text(std::string_view text) {
        constexpr std::uint64_t extent = capture::kExtentBytes;
        if (bytes_.size() % extent + text.size() > extent) bytes_.set_size(round_up(bytes_.size(), extent));
        const std::uint64_t offset = bytes_.size();
        if (text.empty()) return offset;
        char* at = &bytes_.next();
        __builtin_memcpy(at, text.data(), text.size());
        bytes_.set_size(offset + text.size());
        return offset;
    }

    capture::FileTable<char> bytes_;
    capture::FileTable<capture::StringRecord> strings_;
    capture::FileTable<capture::CodeRecord> codes_;
    capture::FileTable<capture::NodeRecord> nodes_;
    IdSet string_set_, code_set_, node_set_;
    AddressMap by_address_;
    PageVector<std::uint32_t> links_;  // of a node: its latest linked child; of such a child: the one before
};

}  // namespace hiwater
