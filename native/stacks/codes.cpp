#include "stacks/codes.h"

#include <new>

namespace hiwater {

void Codes::begin(const StartOptions& options) {
    reset();
    positions_.resize(kPositions);
    internal_prefix_ = options.internal_prefix;
    own_script_ = options.own_script;
    const auto command = options.facts.find("command");
    command_ = command == options.facts.end() ? "" : command->second;
    ownership_.begin(options.owner_rules);
}

void Codes::reset() noexcept {
    class_.reset();
    positions_.reset();
    ownership_.reset();
}

void Codes::forget_in_child() noexcept {
    ::new (static_cast<void*>(&class_)) PageVector<std::uint8_t>();
    ::new (static_cast<void*>(&positions_)) PageVector<Position>();
    ownership_.forget_in_child();
}

std::uint8_t Codes::classify(std::string_view function, std::string_view file) const noexcept {
    if (!internal_prefix_.empty() && file.starts_with(internal_prefix_))
        return function == "_hiwater_launch_" ? kInternal | kLauncher
               : function == "_hiwater_own_"  ? kInternal | kOwn
                                              : kInternal;
    if (!own_script_.empty() && file == own_script_) return kInternal;
    return 0;
}

std::uint8_t Codes::class_of(std::uint32_t code) {
    constexpr std::uint8_t known = 0x80;
    if (code >= class_.size()) class_.resize(code + 1);
    if ((class_[code] & known) == 0) {
        const capture::CodeRecord& record = tree_.code_record(code);
        class_[code] = known | classify(tree_.text_of(record.function), tree_.text_of(record.file));
    }
    return class_[code];
}

std::uint32_t Codes::code_of(const hw_code_info& info) {
    if (const std::uint32_t known = tree_.known_code(info.code)) return known;
    char function[1000], file[2000];
    const std::uint32_t function_bytes = hw_str_utf8(info.qualname, function, sizeof function);
    const std::uint32_t file_bytes = hw_str_utf8(info.filename, file, sizeof file);
    std::string_view name(file, file_bytes);
    if (!command_.empty() && info.is_generated == 0 && name == "<string>") name = command_;
    const capture::Owner owner =
        info.is_generated != 0 ? capture::Owner::library : ownership_.owner_of(tree_.string(name), name);
    const std::uint32_t code = tree_.code({function, function_bytes}, name, static_cast<std::uint32_t>(info.first_line),
                                          capture::CodeKind::python, owner);
    tree_.remember_code(info.code, code);
    return code;
}

// A function is called from many parents. Its line table is read once for each line, unless another instruction took
// the place.
const Codes::Position* Codes::position_of(Thread& t, const hw_slot& slot, const void* object) {
    const std::uint32_t generation = code_generation(slot.instr).load(std::memory_order_relaxed);
    Position& position = positions_[place_of(slot.instr)];
    if (position.instr == slot.instr && position.generation == generation) return &position;
    hw_code_info info;
    hw_line_cursor& cursor = t.line_cursors[mix(reinterpret_cast<std::uintptr_t>(object)) % Thread::kLineCursors];
    if (!hw_frame_describe(&slot, &cursor, &info)) return nullptr;
    const std::uint32_t code = code_of(info);
    const auto kind = static_cast<std::uint8_t>(class_of(code) | (info.is_generated != 0 ? kGenerated : 0));
    position = {slot.instr, generation, code, static_cast<std::uint32_t>(info.line), kind};
    return &position;
}

}  // namespace hiwater
