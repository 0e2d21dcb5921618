"""The event log's format, written by the profiled process and read by the analysis.

The first page holds the header; after it each 32 bytes are one record. A record of kind 0 is a hole
(not written, or cut off) and is skipped.

History:
    1: first version.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

SCHEMA_VERSION: Final = 1

MAGIC: Final = b"TRAINPRF"
# magic, schema version, byte length of the JSON that follows
HEADER_PREFIX: Final = struct.Struct("<8sII")
HEADER_BYTES: Final = 4096
# In the header page: when recording stopped (perf_counter_ns, errno or Stop), or zeros.
STOPPED: Final = struct.Struct("<QI")
STOPPED_OFFSET: Final = 4000
# A log grows by at most this: it is mapped in the script's process.
CHUNK_BYTES: Final = 1 << 18
# At most this many bytes at the end of a log are empty; earlier versions mapped more.
MOST_EMPTY_BYTES: Final = 1 << 20
# The most that one process records, half of what the reader takes: four days at 20 events a step
# and 10 steps a second.
MAX_WRITTEN_BYTES: Final = 1 << 31

# kind u8, flags u8, thread u16, site u32, start ns u64, end ns u64, value u64
RECORD: Final = struct.Struct("<BBHIQQQ")
RECORD_BYTES: Final = RECORD.size
assert RECORD_BYTES == 32
# The same bytes packed natively, in three quarters of the time, where both formats agree.
_NATIVE: Final = struct.Struct("@BBHINNN")
NATIVE_RECORD: Final = (
    _NATIVE if _NATIVE.pack(1, 2, 3, 4, 5, 6, 7) == RECORD.pack(1, 2, 3, 4, 5, 6, 7) else RECORD
)

# A text is split over TEXT records: flags = Topic, thread = part number (the last part with
# LAST_PART set), site = the text's id, then 24 bytes of UTF-8 in place of start, end, value.
TEXT_RECORD: Final = struct.Struct("<BBHI24s")
TEXT_PART_BYTES: Final = 24
LAST_PART: Final = 0x8000


class Stop(IntEnum):
    """Why recording stopped without an errno; errnos are far below these values."""

    LARGE = 1 << 16  # the log reached MAX_WRITTEN_BYTES
    LITTLE_ROOM = (1 << 16) + 1  # the disk is nearly full


class Kind(IntEnum):
    """Kinds of records. All times are `time.perf_counter_ns` of the process that wrote them."""

    HOLE = 0
    # bookkeeping
    TEXT = 1
    CLOCK = 2  # start = perf_counter_ns, end = time_ns, read together
    # thread = number used in later records, site = 1 for the main thread, value = native id
    THREAD = 3
    TORCH_IMPORT = 4  # start, end: torch's own import
    # --max-steps (value 1), --max-time (2) or a trial's own limit (3) ended the run at `start`
    LIMIT = 5
    PROCESS_END = 6  # the interpreter reached its end; value = id of the exception's name, or 0
    # loaders; site = loader id
    LOADER_INIT = 10  # iterator creation: worker start, prefetch priming
    LOADER_RESET = 11  # a persistent iterator starts its next epoch
    LOADER_NEXT = 12  # value = batches yielded so far in this epoch (1 = the first)
    LOADER_END = 13  # a `next` that raised StopIteration; includes worker shutdown
    LOADER_ERROR = 14  # a `next` that raised anything else
    SAMPLER = 15  # draws indices for a worker; value = their number
    FETCH = 16  # dataset[i] and collate; value = samples | collate ns << COLLATE_SHIFT
    LOADER_CLOSE = 17  # worker shutdown of an iterator that is dropped before its end
    # the training loop
    TRANSFER = 20  # site; flags = Transfer; value = bytes
    PLACEMENT = 21  # Module.to and the like; site
    FORWARD = 22  # site = class id; flags = Forward
    LOSS = 23  # site = class id; flags = Forward
    BACKWARD = 24
    OPTIMIZER_STEP = 25  # site = optimizer id
    SCALER_STEP = 26  # GradScaler.step, also when the update is skipped; site = optimizer id
    SCALER_UPDATE = 27  # GradScaler.unscale_ and update
    CLIP_GRADIENTS = 28
    SCHEDULER_STEP = 29
    ZERO_GRAD = 30
    SYNC = 31  # site; flags = Sync
    # site; value = bytes, 0 if unknown; flags = Writer. A library's contains those of its files
    CHECKPOINT_SAVE = 32
    CHECKPOINT_LOAD = 33  # site
    GC = 34  # value = generation
    CLOSURE = 35  # not written: the analysis inserts it where an optimizer's step calls a closure
    # Details of records above; only COMPILE nests. Details of a FETCH have its start and flags =
    # number of fetches that this measured one stands for
    FETCH_CPU = 64  # end - start = CPU of the thread; value = of the process, ns; site = run delay
    FETCH_IO = 65  # site = throttled time; value = bytes read | major faults << FAULTS_SHIFT
    FETCH_READING = 66  # end - start = time the thread waited for block devices (storage)
    FETCH_BATCH = 67  # value = bytes of the batch; site = arrays in it
    SLOW_SAMPLE = 68  # one `dataset[i]`; value = i, or its place in the batch; flags = SlowSample
    # inside a LOADER_NEXT, site = loader id; end - start = blocked; flags = NextParts;
    # value = ns of receiving | the thread's CPU us in that time << RECEIVE_CPU_SHIFT
    NEXT_PARTS = 69
    PIN = 70  # a batch being pinned
    # start, end as of its loader's LOADER_INIT, site = loader id, value = pid, flags = number + 1
    WORKER = 71
    WORKER_LOST = 72  # detected at `start`; site = loader id, value = pid | exit code << 32
    # Cumulative: end - start = wait for devices by --cuda-sync; value = number of waits
    SYNCHRONIZED = 73
    # An event recorded in a device's stream at `start`, seen completed at `end`; site = device;
    # value = ns (signed) on the device since the thread's previous mark; flags = DeviceMark
    DEVICE_MARK = 74
    # A stack sample, due at `start` and taken at `end`; site = stack; flags = StackFlag;
    # value = ns for which Python code held the GIL without a break
    STACK_SAMPLE = 75
    # In a trial: from here on a loader returns copies of earlier batches; site = loader id,
    # value = number of those batches
    FREE_DATA = 76
    # torch.compile compiles, inside the record that triggered it; site; flags = Compile;
    # value = number of earlier compilations of the same code
    COMPILE = 77
    # An outermost call of torch.distributed in which a rank may wait for others; site;
    # flags = index in COLLECTIVES
    COLLECTIVE = 78
    # A DataLoader's first iteration; site = loader id, value = the dataset's number, unique in the
    # process, or 0
    LOADER_BUILT = 79
    # Cumulative, the last record of a line counts: site = function id, flags and thread = high and
    # low bits of the line number; end - start = total time; value = hits.
    LINE = 80  # 81 was for C code in lines, in older runs
    LOADER_EPOCH = 82  # an epoch begins; site = loader id, value = stack of its consumer, or 0
    # `start`: after its closure, an optimizer's step begins to change parameters
    UPDATE_BEGINS = 83  # 84 was for other threads at work, in older runs
    # One figure of a device's allocator, read between two phases at `start`; reading took
    # end - start; site = device, flags = MemoryFigure. Only figures changed since the last BURST.
    DEVICE_MEMORY = 90
    # In torch's sync debug mode: a call at `start` that waits for a device in native code; site;
    # flags = FoundSync
    FOUND_SYNC = 91
    # That mode was on from `start` to `end` (equal: still on); site = steps before it, value =
    # steps in it. Cumulative: the last record counts
    SYNC_WINDOW = 92
    CACHE_EMPTIED = 93  # empty_cache(); site. 94 and 95 were in older runs


# Indices are stored: add new names at the end.
COLLECTIVES: Final = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object"),
    *("barrier", "monitored_barrier", "broadcast", "broadcast_object_list"),
    *("gather", "gather_object", "reduce", "reduce_scatter", "reduce_scatter_tensor"),
    *("scatter", "scatter_object_list", "all_to_all", "all_to_all_single", "send", "recv"),
    "wait",  # for an asynchronous one
)
# A FETCH record's value: samples below this bit, ns of its collate call above.
COLLATE_SHIFT: Final = 24
# A NEXT_PARTS record's value.
RECEIVE_CPU_SHIFT: Final = 40
# A FETCH_IO record's value.
FAULTS_SHIFT: Final = 44
# In `site` (us) of FETCH_CPU and FETCH_IO: the kernel does not report it.
NOT_REPORTED: Final = 0xFFFFFFFF
# In a STACK text; and of a deep stack, the user's frames at either end.
FETCHED: Final = 0
KEPT_FRAMES: Final = 6


class Topic(IntEnum):
    """What a TEXT record's text, one JSON value, describes."""

    SITE = 1  # [file, line, function]
    LOADER = 2  # metadata of a DataLoader, see inside/loading/loader_metadata.py
    CLASS = 3  # qualified class name
    OPTIMIZER = 4  # class name
    PROBE_FAILED = 5  # {probe, error}
    PROBE_UNAVAILABLE = 6  # {probe, reason}
    EXCEPTION = 7  # class name of the exception that ended the script
    RECORDING_STOPPED = 8  # {reason, at_ns}
    # {torch, cuda, hip} at torch's import; {launch_blocking} if CUDA_LAUNCH_BLOCKING is set;
    # {torch_threads, looped_optimizer: {class, tensors, site}, numerics: {parameters, products}}
    # {own_optimizer: {class, tensors, site}, cores_allotted, optimizer: its number, backward_nodes,
    # convolves_in_float64, decomposes_in_float64} at an optimizer's first step;
    # {detects_anomalies} once it was on for many backward passes;
    # {device} when it is first used;
    # {rank, world_size, backend} on joining a process group;
    # {changed_dataset: {loader, attribute}}: it had changed when the loader's next epoch began;
    # {worker_threads: {torch, set_at}, number} in a loader's worker: torch's number of threads from
    # then on, and the script's line that set it (0: none);
    # {first_samples: {base_seed, checksums}} of an IterableDataset, in one of several workers;
    # {asked_for_worker} after the first get_worker_info()
    ENVIRONMENT = 9
    # {file, line, name, why, source}: a function whose lines are timed; `source` names the file in
    # sources/ with its text as run, or is null
    LINE_FUNCTION = 10
    # [site id]: the user's frames of a stack, innermost first; of a deep stack both ends. FETCHED
    # stands for torch's fetch: frames before it are the dataset's. Before them may be a list of
    # site ids, outermost first: library functions that the innermost frame has called. Until the
    # first step [package, function] comes first: the package being imported, and the library
    # function that called the user's innermost frame, or is outermost without one
    STACK = 11
    # In a trial: {applied{}, refused{name: why}}: settings changed; {losses[]}: of the first
    # backward passes; {uncontained[]}: what wrote outside of the trial's directory;
    # {copied{path: bytes}}: large files that the script opened to change in place;
    # {moved{path: bytes}}: directories that it moved, which were copied first
    TRIAL = 12
    # {device, place: [file, line, function], requested_bytes, ...}: the out-of-memory error that
    # ended the process; see inside/device/memory.py
    OUT_OF_MEMORY = 20


class Writer(IntEnum):
    """The library that wrote a checkpoint."""

    TORCH = 0  # torch.save
    SAFETENSORS = 1  # one file, by save_file and the like
    TRANSFORMERS = 2  # a whole checkpoint by Hugging Face's Trainer; the next ones are whole too
    LIGHTNING = 3
    ACCELERATE = 4
    DISTRIBUTED = 5  # torch.distributed.checkpoint


class StackFlag(IntEnum):
    """Bits of a STACK_SAMPLE record's flags."""

    KNOWN = 1  # else the thread had continued before it could be sampled
    WAITS = 2  # in the standard library, waiting for another thread or process
    CROWDED = 4  # other threads may have run Python code at that moment
    RUNS = 16  # on a core, or waiting for one, with the GIL released
    OPERATOR = 32  # the same, in user code or code that uses torch: a torch operator
    ARRAYS = 64  # the same, in a library that uses NumPy or SciPy but not torch


class NextPartsFlag(IntEnum):
    """Bits of a NEXT_PARTS record's flags."""

    CPU_KNOWN = 1


class TransferFlag(IntEnum):
    """Bits of a TRANSFER record's flags."""

    H2D = 1
    D2H = 2
    D2D = 4
    PINNED = 8
    NON_BLOCKING = 16
    BY_LIBRARY = 32  # the user's code did not call the tensor's method itself
    CREATED_IN_LINE = 64  # a torch function creates the tensor in the text of the same line


class ForwardFlag(IntEnum):
    """Bits of a FORWARD or LOSS record's flags."""

    GRAD = 1  # grad mode was on
    TRAINING = 2  # module.training


class SlowSampleFlag(IntEnum):
    """Bits of a SLOW_SAMPLE record's flags."""

    IS_INDEX = 1  # value is the dataset's index


class CompileFlag(IntEnum):
    """Bits of a COMPILE record's flags."""

    COUNT_KNOWN = 1  # torch reports the number of earlier compilations
    LATER_PART = 2  # a later part of an earlier compilation, such as its backward
    # Torch's reason for the recompilation:
    OTHER_MODE = 4  # train or eval, with or without gradients
    OTHER_NUMBER = 8  # a Python number
    OTHER_SHAPE = 16


class DeviceMarkFlag(IntEnum):
    """Bits of a DEVICE_MARK record's flags."""

    FIRST = 1  # the thread's first mark
    # 2 and 4 meant, in older runs, that the device had been made to wait.


class SyncFlag(IntEnum):
    """Flags of a SYNC record: the call, and where it was made.

    ON_CPU: the tensor was on the host. IN_CHAIN: another value was read just before, as fast as at
    this line the last time; no mark was recorded in the device's stream. BY_TORCH: torch's code
    made the call. BY_LIBRARY: a package made it, or called torch's code; not set with ON_CPU.
    """

    ITEM = 1
    TOLIST = 2
    NUMPY = 3
    BOOL = 4
    FLOAT = 5
    INT = 6
    INDEX = 7
    FORMAT = 8
    NONZERO = 9
    SYNCHRONIZE = 10
    BY_TORCH = 16
    BY_LIBRARY = 32
    IN_CHAIN = 64
    ON_CPU = 128


class MemoryFigure(IntEnum):
    """Flags of a DEVICE_MEMORY record: the meaning of its value, bytes or a count."""

    BURST = 0  # no value: a new series of readings begins
    ALLOCATED = 1  # in tensors
    RESERVED = 2  # allocated from the device, for tensors or cached
    PEAK_ALLOCATED = 3  # since the start, or since the script reset it
    PEAK_RESERVED = 4
    RETRIES = 6  # allocations that succeeded only after cached memory was freed
    OUT_OF_MEMORY = 7  # errors raised
    LIMIT = 8  # bytes that this process may allocate on the device


class FoundSyncFlag(IntEnum):
    """Bits of a FOUND_SYNC record's flags."""

    KNOWN = 1  # the call is also recorded as SYNC or TRANSFER
