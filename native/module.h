// What the files of the Python module share.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>

namespace hiwater {

struct EngineFault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] void raise_os_error(int error, const std::string& path);

// The functions for what depends on the system: defined once for each kind of engine.
void add_system_functions(nanobind::module_& m);

}  // namespace hiwater
