/* A small, deterministic libnvidia-ml.so.1: lets the real pynvml run where there is no GPU.
 *
 * Build:
 *   gcc -O2 -fPIC -shared -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 \
 *       -o libnvidia-ml.so.1 stub_nvml.c -lpthread
 *   -DOLD_DRIVER leaves out the functions that old drivers do not export.
 *
 * STUB_NVML_CONF names a file of "key=value" lines, read anew whenever it changes:
 *   gpus=N  name=TEXT
 *   clock=mono|virtual  now_ms=T         virtual: time stands at now_ms
 *   period_ms  duty_pct                  square wave: busy for the first duty_pct of each period
 *   util_on  util_off                    utilisation in percent, busy and idle
 *   power_busy_mw  power_idle_mw  power_limit_mw
 *   energy_offset_mj                     the energy counter is the wave's exact integral and this
 *   mem_total  mem_used  mem_reserved    bytes
 *   temp                                 degrees C
 *   clock_sm  clock_mem                  MHz; their maxima clock_sm_max  clock_mem_max
 *   throttle                             bit mask of what limits the clocks
 *   pcie_tx  pcie_rx                     KB/s; pcie_gen  pcie_width, pcie_gen_max  pcie_width_max
 *   procs=PID:BYTES,PID:BYTES            "self" is the calling process, BYTES -1 not told
 *   mig=0|1  mig_count=N                 N instances on a GPU that is divided
 *   gpuI.KEY=VALUE                       overrides a key for GPU I
 *   fail.FUNCTION=CODE                   that function returns CODE;
 *   failN.FUNCTION=K                     only from its call K on (the first is 1)
 *   delay_us.FUNCTION=T                  it sleeps T us first: a slow or hung driver
 *   lost_after=N                         after N device calls all return GPU_IS_LOST
 *   fork_strict=1                        a forked child has to initialize the library again
 *
 * STUB_NVML_LOG names a file that gets a line "PID FUNCTION CODE" per call.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_INSTANCES 7
#define MAX_FUNCTIONS 64
#define KEY_BYTES 96
#define VALUE_BYTES 128

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { MEMORY_V2 = 0x2000028, TEMPERATURE_V1 = 0x100000c };

typedef int result;
typedef struct device { unsigned index, instance; } *device; /* instance 0: the whole GPU */

static const char *const defaults =
    "\ngpus=1\nname=Stub GPU 80GB\nclock=mono\nnow_ms=0\nperiod_ms=1000\nduty_pct=50\nutil_on=96\n"
    "util_off=0\nmem_total=85899345920\nmem_used=10737418240\nmem_reserved=536870912\n"
    "power_idle_mw=70000\npower_busy_mw=650000\npower_limit_mw=700000\nenergy_offset_mj=0\ntemp=41\n"
    "clock_sm=1755\nclock_mem=2619\nclock_sm_max=1980\nclock_mem_max=2619\nthrottle=0\n"
    "pcie_tx=1200\npcie_rx=350000\npcie_gen=4\npcie_width=16\npcie_gen_max=5\npcie_width_max=16\n"
    "procs=\nmig=0\nmig_count=0\nlost_after=-1\nfork_strict=0\n";

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static char *conf;
static struct stat conf_stat;
static struct device devices[MAX_GPUS][1 + MAX_INSTANCES];
static int initialized;
static pid_t initialized_by;
static long long device_calls;
static struct { const char *function; long long calls; } counters[MAX_FUNCTIONS];

/* ---- the control file ---- */

static void load_conf(void)
{
    const char *path = getenv("STUB_NVML_CONF");
    struct stat now;
    if (!path || stat(path, &now)) {
        if (!conf)
            conf = strdup("\n");
        return;
    }
    if (conf && now.st_mtim.tv_sec == conf_stat.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == conf_stat.st_mtim.tv_nsec && now.st_ino == conf_stat.st_ino)
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    char *text = malloc((size_t)now.st_size + 3);
    size_t length = fread(text + 1, 1, (size_t)now.st_size, file);
    fclose(file);
    text[0] = '\n'; /* so that every key stands after a newline */
    text[length + 1] = '\n';
    text[length + 2] = 0;
    free(conf);
    conf = text;
    conf_stat = now;
}

static int find(const char *text, const char *key, char *value)
{
    char line[KEY_BYTES + 3];
    snprintf(line, sizeof line, "\n%s=", key);
    const char *at = strstr(text, line);
    if (!at)
        return 0;
    at += strlen(line);
    size_t length = strcspn(at, "\n");
    if (length >= VALUE_BYTES)
        length = VALUE_BYTES - 1;
    memcpy(value, at, length);
    value[length] = 0;
    return 1;
}

static void text_of(int gpu, const char *key, char *value)
{
    char own[KEY_BYTES];
    snprintf(own, sizeof own, "gpu%d.%s", gpu, key);
    if (!(gpu >= 0 && find(conf, own, value)) && !find(conf, key, value) &&
        !find(defaults, key, value))
        value[0] = 0;
}

static long long number_of(int gpu, const char *key)
{
    char value[VALUE_BYTES];
    text_of(gpu, key, value);
    return strtoll(value, NULL, 0);
}

static int function_option(const char *option, const char *function, long long *number)
{
    char key[KEY_BYTES], value[VALUE_BYTES];
    snprintf(key, sizeof key, "%s.%s", option, function);
    if (!find(conf, key, value))
        return 0;
    *number = strtoll(value, NULL, 0);
    return 1;
}

/* ---- the square wave ---- */

static double now_ms(void)
{
    char clock[VALUE_BYTES];
    text_of(-1, "clock", clock);
    if (clock[0] == 'v')
        return (double)number_of(-1, "now_ms");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Returns the time in [0, now] in which the GPU was busy, and whether it is. */
static double busy_ms(int gpu, int *is_busy)
{
    double period = (double)number_of(gpu, "period_ms");
    double on = period * (double)number_of(gpu, "duty_pct") / 100;
    double now = now_ms(), whole = (double)(long long)(now / period);
    double rest = now - period * whole;
    *is_busy = rest < on;
    return whole * on + (*is_busy ? rest : on);
}

static long long wave(int gpu, const char *busy_key, const char *idle_key)
{
    int is_busy;
    busy_ms(gpu, &is_busy);
    return number_of(gpu, is_busy ? busy_key : idle_key);
}

static double energy_mj(int gpu)
{
    int is_busy;
    double busy = busy_ms(gpu, &is_busy);
    return ((double)number_of(gpu, "power_busy_mw") * busy +
            (double)number_of(gpu, "power_idle_mw") * (now_ms() - busy)) / 1e3 +
           (double)number_of(gpu, "energy_offset_mj");
}

/* ---- what every call does first and last ---- */

static long long count_call(const char *function)
{
    for (int i = 0; i < MAX_FUNCTIONS; i++) {
        if (!counters[i].function)
            counters[i].function = function;
        if (!strcmp(counters[i].function, function))
            return ++counters[i].calls;
    }
    return 0;
}

/* Locks, and returns what the call has to fail with; the mutex stays locked. */
static result enter(const char *function, int needs_init, int gpu)
{
    long long value, from = 1;
    pthread_mutex_lock(&mutex);
    load_conf();
    long long call = count_call(function);
    if (function_option("delay_us", function, &value)) {
        struct timespec pause = {value / 1000000, value % 1000000 * 1000};
        pthread_mutex_unlock(&mutex);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&mutex);
    }
    if (needs_init &&
        (!initialized || (number_of(-1, "fork_strict") && initialized_by != getpid())))
        return UNINITIALIZED;
    if (gpu >= 0) {
        long long lost_after = number_of(gpu, "lost_after");
        if (++device_calls > lost_after && lost_after >= 0)
            return GPU_IS_LOST;
    }
    function_option("failN", function, &from);
    if (function_option("fail", function, &value) && call >= from)
        return (result)value;
    return SUCCESS;
}

static result leave(const char *function, result code)
{
    const char *path = getenv("STUB_NVML_LOG");
    if (path) {
        char line[KEY_BYTES + 32];
        int length = snprintf(line, sizeof line, "%d %s %d\n", (int)getpid(), function, code);
        int descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (descriptor >= 0) {
            if (write(descriptor, line, (size_t)length) != length)
                code = UNINITIALIZED; /* a test that cannot see its calls must not pass */
            close(descriptor);
        }
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

static result copy(char *to, unsigned size, const char *from)
{
    if (strlen(from) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

/* A call of the library: BODY runs with the mutex held and sets `code`. */
#define SYSTEM_CALL(NAME, PARAMETERS, BODY)                        \
    EXPORT result NAME PARAMETERS                                  \
    {                                                              \
        result code = enter(#NAME, 1, -1);                         \
        if (code == SUCCESS)                                       \
            BODY                                                   \
        return leave(#NAME, code);                                 \
    }

/* The same for a device; BODY may use the index `gpu` of the GPU that it is or is a part of. */
#define DEVICE_CALL(NAME, PARAMETERS, BODY)                        \
    EXPORT result NAME PARAMETERS                                  \
    {                                                              \
        int gpu = (int)handle->index;                              \
        result code = enter(#NAME, 1, gpu);                        \
        if (code == SUCCESS)                                       \
            BODY                                                   \
        return leave(#NAME, code);                                 \
    }

/* ---- the library ---- */

EXPORT result nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    result code = enter("nvmlInitWithFlags", 0, -1);
    if (code == SUCCESS) {
        for (unsigned i = 0; i < MAX_GPUS; i++)
            for (unsigned j = 0; j <= MAX_INSTANCES; j++)
                devices[i][j] = (struct device){i, j};
        initialized++;
        initialized_by = getpid();
    }
    return leave("nvmlInitWithFlags", code);
}

EXPORT const char *nvmlErrorString(result code)
{
    (void)code;
    return "Unknown Error";
}

SYSTEM_CALL(nvmlShutdown, (void), { initialized--; })
SYSTEM_CALL(nvmlDeviceGetCount_v2, (unsigned *count), { *count = (unsigned)number_of(-1, "gpus"); })
SYSTEM_CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned index, device *handle), {
    if (index >= MAX_GPUS || index >= (unsigned)number_of(-1, "gpus"))
        code = INVALID_ARGUMENT;
    else
        *handle = &devices[index][0];
})

DEVICE_CALL(nvmlDeviceGetName, (device handle, char *name, unsigned size), {
    char value[VALUE_BYTES];
    text_of(gpu, "name", value);
    code = copy(name, size, value);
})
DEVICE_CALL(nvmlDeviceGetUUID, (device handle, char *uuid, unsigned size), {
    char value[VALUE_BYTES];
    if (handle->instance)
        snprintf(value, sizeof value, "MIG-00000000-0000-4000-8000-%010x%02x", (unsigned)gpu,
                 handle->instance);
    else
        snprintf(value, sizeof value, "GPU-%08x-0000-4000-8000-000000000000", (unsigned)gpu);
    code = copy(uuid, size, value);
})

typedef struct { unsigned gpu, memory; } utilization;
DEVICE_CALL(nvmlDeviceGetUtilizationRates, (device handle, utilization *rates), {
    if (number_of(gpu, "mig"))
        code = NOT_SUPPORTED;
    rates->gpu = (unsigned)wave(gpu, "util_on", "util_off");
    rates->memory = rates->gpu / 3;
})

typedef struct { unsigned long long total, free, used; } memory_v1;
DEVICE_CALL(nvmlDeviceGetMemoryInfo, (device handle, memory_v1 *memory), {
    memory->total = (unsigned long long)number_of(gpu, "mem_total");
    memory->used = (unsigned long long)(number_of(gpu, "mem_used") + number_of(gpu, "mem_reserved"));
    memory->free = memory->total - memory->used;
})

DEVICE_CALL(nvmlDeviceGetPowerUsage, (device handle, unsigned *mw), {
    *mw = (unsigned)wave(gpu, "power_busy_mw", "power_idle_mw");
})
DEVICE_CALL(nvmlDeviceGetEnforcedPowerLimit, (device handle, unsigned *mw), {
    *mw = (unsigned)number_of(gpu, "power_limit_mw");
})
DEVICE_CALL(nvmlDeviceGetTotalEnergyConsumption, (device handle, unsigned long long *mj), {
    *mj = (unsigned long long)energy_mj(gpu);
})
DEVICE_CALL(nvmlDeviceGetTemperature, (device handle, int sensor, unsigned *celsius), {
    (void)sensor;
    *celsius = (unsigned)number_of(gpu, "temp");
})

enum { CLOCK_MEMORY = 2 };
DEVICE_CALL(nvmlDeviceGetClockInfo, (device handle, int type, unsigned *mhz), {
    *mhz = (unsigned)number_of(gpu, type == CLOCK_MEMORY ? "clock_mem" : "clock_sm");
})
DEVICE_CALL(nvmlDeviceGetMaxClockInfo, (device handle, int type, unsigned *mhz), {
    *mhz = (unsigned)number_of(gpu, type == CLOCK_MEMORY ? "clock_mem_max" : "clock_sm_max");
})
DEVICE_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, (device handle, unsigned long long *mask), {
    *mask = (unsigned long long)number_of(gpu, "throttle");
})

DEVICE_CALL(nvmlDeviceGetPcieThroughput, (device handle, int received, unsigned *kb_per_s), {
    *kb_per_s = (unsigned)number_of(gpu, received ? "pcie_rx" : "pcie_tx");
})
DEVICE_CALL(nvmlDeviceGetCurrPcieLinkGeneration, (device handle, unsigned *generation), {
    *generation = (unsigned)number_of(gpu, "pcie_gen");
})
DEVICE_CALL(nvmlDeviceGetCurrPcieLinkWidth, (device handle, unsigned *width), {
    *width = (unsigned)number_of(gpu, "pcie_width");
})
DEVICE_CALL(nvmlDeviceGetMaxPcieLinkGeneration, (device handle, unsigned *generation), {
    *generation = (unsigned)number_of(gpu, "pcie_gen_max");
})
DEVICE_CALL(nvmlDeviceGetMaxPcieLinkWidth, (device handle, unsigned *width), {
    *width = (unsigned)number_of(gpu, "pcie_width_max");
})

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} process;
_Static_assert(sizeof(process) == 24, "the binding's layout");

/* Asked with too little room it tells how many there are. */
static result list_processes(int gpu, unsigned *count, process *processes)
{
    char list[VALUE_BYTES];
    unsigned found = 0, room = processes ? *count : 0;
    char *rest = NULL;
    text_of(gpu, "procs", list);
    for (char *one = strtok_r(list, ",", &rest); one; one = strtok_r(NULL, ",", &rest), found++) {
        char *bytes = strchr(one, ':');
        int is_self = !strncmp(one, "self", 4);
        if (found < room)
            processes[found] = (process){
                is_self ? (unsigned)getpid() : (unsigned)strtoul(one, NULL, 10),
                (unsigned long long)strtoll(bytes ? bytes + 1 : "-1", NULL, 10), ~0u, ~0u};
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
DEVICE_CALL(nvmlDeviceGetComputeRunningProcesses_v2,
            (device handle, unsigned *count, process *processes),
            { code = list_processes(gpu, count, processes); })

DEVICE_CALL(nvmlDeviceGetMigMode, (device handle, unsigned *current, unsigned *pending), {
    *current = *pending = (unsigned)number_of(gpu, "mig");
})
DEVICE_CALL(nvmlDeviceGetMaxMigDeviceCount, (device handle, unsigned *count), {
    *count = number_of(gpu, "mig") ? MAX_INSTANCES : 0;
})
DEVICE_CALL(nvmlDeviceGetMigDeviceHandleByIndex,
            (device handle, unsigned index, device *instance), {
    if (index >= MAX_INSTANCES || index >= (unsigned)number_of(gpu, "mig_count"))
        code = NOT_FOUND;
    else
        *instance = &devices[gpu][index + 1];
})
DEVICE_CALL(nvmlDeviceGetGpuInstanceId, (device handle, unsigned *id), {
    *id = handle->instance;
})
DEVICE_CALL(nvmlDeviceGetComputeInstanceId, (device handle, unsigned *id), {
    *id = 0;
})

#ifndef OLD_DRIVER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
_Static_assert(sizeof(memory_v2) == 40, "the binding's layout");
DEVICE_CALL(nvmlDeviceGetMemoryInfo_v2, (device handle, memory_v2 *memory), {
    if (memory->version != MEMORY_V2)
        code = VERSION_MISMATCH;
    memory->total = (unsigned long long)number_of(gpu, "mem_total");
    memory->reserved = (unsigned long long)number_of(gpu, "mem_reserved");
    memory->used = (unsigned long long)number_of(gpu, "mem_used");
    memory->free = memory->total - memory->used - memory->reserved;
})

typedef struct { unsigned version, sensor; int celsius; } temperature_v1;
_Static_assert(sizeof(temperature_v1) == 12, "the binding's layout");
DEVICE_CALL(nvmlDeviceGetTemperatureV, (device handle, temperature_v1 *temperature), {
    if (temperature->version != TEMPERATURE_V1)
        code = VERSION_MISMATCH;
    temperature->celsius = (int)number_of(gpu, "temp");
})

DEVICE_CALL(nvmlDeviceGetComputeRunningProcesses_v3,
            (device handle, unsigned *count, process *processes),
            { code = list_processes(gpu, count, processes); })
DEVICE_CALL(nvmlDeviceGetCurrentClocksEventReasons, (device handle, unsigned long long *mask), {
    *mask = (unsigned long long)number_of(gpu, "throttle");
})
#endif
