// The line recorder's part of the Python door.
#pragma once

#include <nanobind/nanobind.h>

namespace hiwater::lines {

void add_to(nanobind::module_& module);

}  // namespace hiwater::lines
