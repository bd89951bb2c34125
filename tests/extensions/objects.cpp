// What C++ code allocates with.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {

struct alignas(64) Wide {
    std::byte bytes[64];
};

// Its destructor runs while the thread is being taken apart.
struct Farewell {
    std::size_t size = 0;
    ~Farewell() {
        if (size) static_cast<volatile char*>(::operator new(size))[0] = 1;  // kept: the test counts it
    }
};
thread_local Farewell farewell;

}  // namespace

extern "C" {

void* take_new(std::size_t size) { return ::operator new(size); }
void* take_new_array(std::size_t size) { return new std::byte[size]; }
void* take_new_nothrow(std::size_t size) { return ::operator new(size, std::nothrow); }
void* take_new_aligned(std::size_t count) { return new Wide[count]; }
void* take_vector(std::size_t size) { return new std::vector<std::uint8_t>(size); }
void* take_shared(std::size_t count) { return new std::shared_ptr<std::byte[]>(new std::byte[count]); }

void give_back_new(void* block) { ::operator delete(block); }
void give_back_new_array(void* block) { delete[] static_cast<std::byte*>(block); }
void give_back_new_aligned(void* block) { delete[] static_cast<Wide*>(block); }
void give_back_vector(void* vector) { delete static_cast<std::vector<std::uint8_t>*>(vector); }

std::size_t vector_header_bytes() { return sizeof(std::vector<std::uint8_t>); }

// new that fails throws; the exception is caught here and the caller sees 1.
int refused_new() {
    try {
        void* volatile block = ::operator new(SIZE_MAX / 2);
        return block == nullptr;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

void allocate_in_thread_local_destructor(std::size_t size) {
    std::thread([size] { farewell.size = size; }).join();
}

}  // extern "C"
