// A libcuda.so.1 without a driver: the devices' UUIDs by this process's numbers, and nothing else. As the real one, it
// refuses before cuInit, which is left to the test.
#include <string.h>

enum { kMost = 16, kSuccess = 0, kNotInitialised = 3, kInvalidDevice = 101 };

static unsigned char uuids[kMost][16];
static int device_count, is_initialised;

void cuda_double_reset(void) { device_count = is_initialised = 0; }

void cuda_double_add(const unsigned char* uuid) { memcpy(uuids[device_count++], uuid, 16); }

int cuInit(unsigned flags) {
    (void)flags;
    is_initialised = 1;
    return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
    if (!is_initialised) return kNotInitialised;
    if (ordinal < 0 || ordinal >= device_count) return kInvalidDevice;
    *device = ordinal;
    return kSuccess;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    if (!is_initialised) return kNotInitialised;
    memcpy(uuid, uuids[device], 16);
    return kSuccess;
}
