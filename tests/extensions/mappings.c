// The system calls that make, change and end mappings, each through libc's own function.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

void* map_anonymous(size_t size) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
void* map_reserved(size_t size) {
    return mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
void* map_fixed(void* address, size_t size) {
    return mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}
void* map_fixed_reserved(void* address, size_t size) {
    return mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}
void* map_anonymous64(size_t size) {
    return mmap64(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
void* map_shared_anonymous(size_t size) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}
void* map_file_readonly(int descriptor, size_t size) { return mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0); }
void* map_file_shared(int descriptor, size_t size) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
}
void* map_shared_reserved(size_t size) { return mmap(NULL, size, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); }
void* map_shared_part(int descriptor, size_t size, size_t offset) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)offset);
}
void* map_shared_fixed(void* address, size_t size, int descriptor) {
    return mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0);
}
// Fails: a file mapping of no file. Nothing may be counted.
void* map_refused(size_t size) { return mmap(NULL, size, PROT_READ, MAP_PRIVATE, -1, 0); }

int unmap(void* address, size_t size) { return munmap(address, size); }
int open_reserved(void* address, size_t size) { return mprotect(address, size, PROT_READ | PROT_WRITE); }
int close_again(void* address, size_t size) { return mprotect(address, size, PROT_NONE); }
int make_readonly(void* address, size_t size) { return mprotect(address, size, PROT_READ); }

void* remap_in_place(void* address, size_t old_size, size_t new_size) { return mremap(address, old_size, new_size, 0); }
void* remap(void* address, size_t old_size, size_t new_size) {
    return mremap(address, old_size, new_size, MREMAP_MAYMOVE);
}
void* remap_onto(void* address, size_t old_size, size_t new_size, void* target) {
    return mremap(address, old_size, new_size, MREMAP_MAYMOVE | MREMAP_FIXED, target);
}

void* attach_segment(size_t size, int* identifier) {
    *identifier = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
    void* address = shmat(*identifier, NULL, 0);
    shmctl(*identifier, IPC_RMID, NULL);  // it goes when the last process detaches
    return address;
}
int detach_segment(void* address) { return shmdt(address); }

// Two mappings of one segment.
int attach_twice(size_t size, void** addresses) {
    const int identifier = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
    addresses[0] = shmat(identifier, NULL, 0);
    addresses[1] = shmat(identifier, NULL, 0);
    return shmctl(identifier, IPC_RMID, NULL);
}
// A segment that another process makes, and this one attaches.
void* attach_segment_of_child(size_t size) {
    int ends[2], identifier = -1;
    if (pipe(ends) != 0) return MAP_FAILED;
    const pid_t child = fork();
    if (child == 0) {
        identifier = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
        _exit(write(ends[1], &identifier, sizeof identifier) == sizeof identifier ? 0 : 1);
    }
    if (read(ends[0], &identifier, sizeof identifier) != sizeof identifier) return MAP_FAILED;
    waitpid(child, NULL, 0);
    void* address = shmat(identifier, NULL, 0);
    shmctl(identifier, IPC_RMID, NULL);
    return address;
}

int make_memfd(size_t size) {
    int descriptor = memfd_create("hiwater-test", 0);
    return ftruncate(descriptor, (off_t)size) == 0 ? descriptor : -1;
}

void* grow_break(intptr_t increment) { return sbrk(increment); }

// `count` reservations with every second one opened: a load for whatever structure keeps the intervals.
int checkerboard(size_t count, size_t page) {
    for (size_t i = 0; i < count; ++i) {
        char* address = map_reserved(2 * page);
        if (address == MAP_FAILED || mprotect(address, page, PROT_READ | PROT_WRITE) != 0) return -1;
    }
    return 0;
}
