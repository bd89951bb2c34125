// Where the engine has another C++ library than the program (clang's, in wheels), an exception of the program must pass
// the engine's frames unseen: the program's unwinder asks the function below about each, and the library's own would
// read the unwinder's state as that of its own unwinder. Nothing is left undone: no frame that the program's exceptions
// may pass has anything to undo (interpose/block_hooks.h). The linker puts this in the place of __gxx_personality_v0.
#include <unwind.h>

#include <cstdint>
#include <version>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int, _Unwind_Action, std::uint64_t, _Unwind_Exception*,
                                                _Unwind_Context*);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, std::uint64_t thrown_by,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
#if defined(_LIBCPP_VERSION)
    constexpr std::uint64_t kOwn = 0x434c4e47432b2b00;  // "CLNGC++", and a byte that tells rethrown ones apart
    if ((thrown_by | 0xff) != (kOwn | 0xff)) return _URC_CONTINUE_UNWIND;
#endif
    return __real___gxx_personality_v0(version, actions, thrown_by, exception, context);
}
}
