// A libnvidia-ml.so.1 without a driver, below the real nvidia-ml-py: the functions of NVML's that hiwater calls,
// answering as nvml.h says they do. All take one lock, as the driver's do. What the driver knows is put in by the
// nvml_double_… functions.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { kMost = 16, kSlots = 7 };
enum {
    kSuccess = 0,
    kUninitialized = 1,
    kInvalidArgument = 2,
    kNotSupported = 3,
    kNotFound = 6,
    kInsufficientSize = 7,
    kVersionMismatch = 25,
};

typedef unsigned long long Bytes;
typedef struct {
    unsigned pid;
    Bytes used;
    unsigned gpu_instance, compute_instance;
} Process;
typedef struct {
    char uuid[96];
    Bytes total, used, reserved;
    int has_mig, parent, slot, process_count;
    Process processes[kMost];
} Device;
typedef struct {
    int device, error;
    char function[64];
} Refusal;
typedef struct {
    Bytes total, free, used;
} Memory;
typedef struct {
    unsigned version;
    Bytes total, reserved, free, used;
} MemoryV2;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device devices[kMost];
static Refusal refusals[kMost];
static int device_count, refusal_count, is_initialised, process_lists, entered_fd = -1, go_fd = -1;

void nvml_double_reset(void) {
    device_count = refusal_count = is_initialised = process_lists = 0;
    entered_fd = go_fd = -1;
}

// Returns its number. `has_mig`: -1 where the card knows no MIG, else whether it is on. `parent`: the card of an
// instance, or -1.
int nvml_double_add(const char* uuid, Bytes total, Bytes used, Bytes reserved, int has_mig, int parent, int slot) {
    Device* device = &devices[device_count];
    memset(device, 0, sizeof *device);
    snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
    device->total = total;
    device->used = used;
    device->reserved = reserved;
    device->has_mig = has_mig;
    device->parent = parent;
    device->slot = slot;
    return device_count++;
}

void nvml_double_memory(int device, Bytes used) { devices[device].used = used; }

void nvml_double_processes(int device, const Process* processes, int count) {
    devices[device].process_count = count;
    memcpy(devices[device].processes, processes, (size_t)count * sizeof *processes);
}

// `device` -1: for all of them.
void nvml_double_refuse(int device, const char* function, int error) {
    Refusal* refusal = &refusals[refusal_count++];
    refusal->device = device;
    refusal->error = error;
    snprintf(refusal->function, sizeof refusal->function, "%s", function);
}

void nvml_double_accept(void) { refusal_count = 0; }

int nvml_double_process_lists(void) { return process_lists; }

// The next list of processes tells `entered`, and waits for `go` with the lock held.
void nvml_double_hold(int entered, int go) {
    entered_fd = entered;
    go_fd = go;
}

static int refusal_of(const Device* device, const char* function) {
    if (!is_initialised) return kUninitialized;
    if (device != NULL && (device < devices || device >= devices + device_count)) return kInvalidArgument;
    for (int i = 0; i < refusal_count; ++i) {
        const int is_for_it = refusals[i].device < 0 || (device != NULL && device == &devices[refusals[i].device]);
        if (is_for_it && strcmp(refusals[i].function, function) == 0) return refusals[i].error;
    }
    return kSuccess;
}

static int begin(const Device* device, const char* function) {
    pthread_mutex_lock(&lock);
    return refusal_of(device, function);
}

static int end(int result) {
    pthread_mutex_unlock(&lock);
    return result;
}

static Device* card_at(unsigned index) {
    for (int i = 0; i < device_count; ++i) {
        if (devices[i].parent < 0 && index-- == 0) return &devices[i];
    }
    return NULL;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    is_initialised = 1;
    return end(refusal_of(NULL, "nvmlInit"));
}

int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return end(begin(NULL, "nvmlShutdown")); }

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
    const int result = begin(NULL, "nvmlSystemGetDriverVersion");
    if (result == kSuccess) snprintf(version, length, "580.00");
    return end(result);
}

int nvmlDeviceGetCount_v2(unsigned* count) {
    const int result = begin(NULL, "nvmlDeviceGetCount");
    if (result == kSuccess) {
        for (*count = 0; card_at(*count) != NULL;) ++*count;
    }
    return end(result);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
    *device = card_at(index);
    return end(begin(*device, "nvmlDeviceGetHandleByIndex"));
}

int nvmlDeviceGetUUID(Device* device, char* uuid, unsigned length) {
    const int result = begin(device, "nvmlDeviceGetUUID");
    if (result == kSuccess) snprintf(uuid, length, "%s", device->uuid);
    return end(result);
}

int nvmlDeviceGetMigMode(Device* device, unsigned* current, unsigned* pending) {
    int result = begin(device, "nvmlDeviceGetMigMode");
    if (result == kSuccess && device->has_mig < 0) result = kNotSupported;
    if (result == kSuccess) *current = *pending = (unsigned)device->has_mig;
    return end(result);
}

int nvmlDeviceGetMaxMigDeviceCount(Device* device, unsigned* count) {
    *count = kSlots;
    return end(begin(device, "nvmlDeviceGetMaxMigDeviceCount"));
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device* device, unsigned index, Device** instance) {
    int result = begin(device, "nvmlDeviceGetMigDeviceHandleByIndex");
    if (result == kSuccess) {
        result = kNotFound;
        for (int i = 0; i < device_count; ++i) {
            if (devices[i].parent == device - devices && devices[i].slot == (int)index) {
                *instance = &devices[i];
                result = kSuccess;
            }
        }
    }
    return end(result);
}

int nvmlDeviceGetMemoryInfo(Device* device, Memory* memory) {
    const int result = begin(device, "nvmlDeviceGetMemoryInfo");
    if (result == kSuccess) {
        const Bytes used = device->used + device->reserved;  // the first version counts the driver's own as used
        *memory = (Memory){device->total, device->total - used, used};
    }
    return end(result);
}

int nvmlDeviceGetMemoryInfo_v2(Device* device, MemoryV2* memory) {
    int result = begin(device, "nvmlDeviceGetMemoryInfo_v2");
    if (result == kSuccess && memory->version != (sizeof *memory | 2U << 24)) result = kVersionMismatch;
    if (result == kSuccess) {
        memory->total = device->total;
        memory->reserved = device->reserved;
        memory->used = device->used;
        memory->free = device->total - device->used - device->reserved;
    }
    return end(result);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device* device, unsigned* count, Process* processes) {
    int result = begin(device, "nvmlDeviceGetComputeRunningProcesses");
    if (processes == NULL) ++process_lists;
    if (go_fd >= 0) {
        const int go = go_fd;
        char byte = 0;
        go_fd = -1;
        if (write(entered_fd, &byte, 1) != 1 || read(go, &byte, 1) != 1) result = kInvalidArgument;
    }
    if (result != kSuccess) return end(result);
    const unsigned room = *count;
    *count = (unsigned)device->process_count;
    if (room < *count) return end(kInsufficientSize);
    if (*count != 0) memcpy(processes, device->processes, *count * sizeof *processes);
    return end(kSuccess);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device* device, unsigned* count, Process* processes) {
    (void)processes;
    *count = 0;
    return end(begin(device, "nvmlDeviceGetGraphicsRunningProcesses"));
}

const char* nvmlErrorString(int result) { return result == kNotSupported ? "Not Supported" : "an error of NVML's"; }
