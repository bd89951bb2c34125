#include "stacks/codes.h"

#include <new>

#include "base/raw_calls.h"

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
    copied_.reset();
    ownership_.reset();
}

void Codes::forget_in_child() noexcept {
    ::new (static_cast<void*>(&class_)) PageVector<std::uint8_t>();
    ::new (static_cast<void*>(&positions_)) PageVector<Position>();
    ::new (static_cast<void*>(&copied_)) PageVector<hw_copied_code>();
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
    const std::uint32_t code =
        code_of({function, function_bytes}, {file, file_bytes}, info.first_line, info.is_generated != 0);
    tree_.remember_code(info.code, code);
    return code;
}

std::uint32_t Codes::code_of(std::string_view function, std::string_view file, std::int32_t first_line,
                             bool is_generated) {
    if (!command_.empty() && !is_generated && file == "<string>") file = command_;
    const capture::Owner owner = is_generated ? capture::Owner::library : ownership_.owner_of(tree_.string(file), file);
    return tree_.code(function, file, static_cast<std::uint32_t>(first_line), capture::CodeKind::python, owner);
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
    position = {slot.instr, generation, code, static_cast<std::uint32_t>(info.line),
                kind_of(code, info.is_generated != 0)};
    return &position;
}

// The code object may be dead by now, unless it is one that we know: its death would tell us. So nothing is kept of
// others.
const Codes::Position* Codes::position_of_waiting(const void* object, const void* instr) {
    const std::uint32_t generation = code_generation(instr).load(std::memory_order_relaxed);
    Position& position = positions_[place_of(instr)];
    if (position.instr == instr && position.generation == generation) return &position;
    if (copied_.size() == 0) copied_.resize(1);
    hw_copied_code& info = copied_[0];
    if (hw_describe_copied(object, instr, platform::copy_own, &info) == 0) return nullptr;
    const std::uint32_t known = tree_.known_code(object);
    const std::uint32_t code = known != 0 ? known
                                          : code_of({info.function, info.function_bytes}, {info.file, info.file_bytes},
                                                    info.first_line, info.is_generated != 0);
    waiting_ = {instr, generation, code, static_cast<std::uint32_t>(info.line), kind_of(code, info.is_generated != 0)};
    return known != 0 ? &(position = waiting_) : &waiting_;
}

}  // namespace hiwater
