/* A libnvidia-ml.so.1 for machines without a GPU: it answers from the file that NVML_STAND_IN names.
 *
 * Lines of the file, in any order: "gpus N", "links GPU N", "switch 1", "field GPU FIELD VALUE" (a field without a line is
 * not supported), "p2p FIRST SECOND CAPABILITY STATUS", "xid GPU NUMBER",
 * "lost GPU 1" (cannot be opened), "fallen GPU 1" (fell off the bus when it was open), "denied GPU 1" (another user's), "sleep SECONDS" (every report takes so long).
 * Names and layouts are those of nvml.h (NVIDIA/go-nvml, gen/nvml/nvml.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned field, scope; long long timestamp, latency; int kind, result; union { unsigned u; unsigned long long ull; } value; } Value;
typedef struct { void *device; unsigned long long kind, data; unsigned gpu, compute; } Event;

static int delivered;

/* The last number of the line whose word and leading numbers are these, or -1. */
static long long stated(const char *word, int count, const long long *keys) {
    FILE *file = fopen(getenv("NVML_STAND_IN") ? getenv("NVML_STAND_IN") : "", "r");
    char line[200], name[50];
    long long answer = -1;
    while (file && fgets(line, sizeof line, file)) {
        long long n[4] = {-1, -1, -1, -1};
        int read = sscanf(line, "%49s %lld %lld %lld %lld", name, n, n + 1, n + 2, n + 3) - 1, same = read == count + 1 && !strcmp(name, word);
        for (int i = 0; same && i < count; i++) same = n[i] == keys[i];
        if (same) answer = n[count];
    }
    if (file) fclose(file);
    return answer;
}

static long long index_of(void *device) { return (long long)(size_t)device - 1; }

int nvmlInit_v2(void) { return stated("gpus", 0, 0) < 0 ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)stated("gpus", 0, 0); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    long long key = index;
    *device = (void *)(size_t)(index + 1);
    return stated("lost", 1, &key) > 0 ? 15 : stated("denied", 1, &key) > 0 ? 4 : 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    long long seconds = stated("sleep", 0, 0);
    if (seconds > 0) sleep((unsigned)seconds);
    snprintf(text, size, "570.86.15");
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *level) { *level = 12080; return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { (void)device; snprintf(text, size, "NVIDIA H100 80GB HBM3"); return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    long long key = index_of(device);
    snprintf(text, size, "GPU-%lld", key);
    return stated("fallen", 1, &key) > 0 ? 15 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) { (void)device; memory[0] = 80ULL << 30; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { (void)device; *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active) {
    long long key = index_of(device), links = stated("links", 1, &key);
    *active = (long long)link < links;
    return links < 0 ? 3 : link > 17 ? 2 : 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *kind) {
    (void)device, (void)link;
    *kind = stated("switch", 0, 0) > 0 ? 2 : 0;
    return 0;
}
int nvmlDeviceGetFieldValues(void *device, int count, Value *values) {
    for (int i = 0; i < count; i++) {
        long long keys[2] = {index_of(device), values[i].field}, value = stated("field", 2, keys);
        values[i].result = value < 0 ? 3 : 0;
        values[i].value.ull = ~0ULL;
        if (values[i].field == 144) values[i].kind = 1, values[i].value.u = (unsigned)value;
        else values[i].kind = 3, values[i].value.ull = (unsigned long long)value;
    }
    return 0;
}
int nvmlDeviceGetP2PStatus(void *first, void *second, int capability, int *status) {
    long long keys[3] = {index_of(first), index_of(second), capability}, value = stated("p2p", 3, keys), links = stated("links", 1, keys);
    *status = value >= 0 ? (int)value : capability == 2 && links <= 0 ? 5 : 0;
    return 0;
}
int nvmlEventSetCreate(void **set) { *set = (void *)1; return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set) { (void)device, (void)set; return kinds == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    (void)set, (void)milliseconds;
    for (long long gpu = 0; gpu < stated("gpus", 0, 0); gpu++) {
        long long xid = stated("xid", 1, &gpu);
        if (xid > 0 && gpu >= delivered) {
            delivered = (int)gpu + 1;
            *event = (Event){(void *)(size_t)(gpu + 1), 8, (unsigned long long)xid, ~0U, ~0U};
            return 0;
        }
    }
    return 10;
}
