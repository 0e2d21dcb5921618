"""The event log's layout: what the profiled process writes and the analysis reads.

The first page of a log holds the header; every other 32 bytes are one record. A record of kind 0 is
a hole (not written yet, or cut off) and is skipped.

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
# By which a log grows at the most, and so what its end may lack of data while it is written.
CHUNK_BYTES: Final = 1 << 20
# One process records no more: half of what is read of a log. At 20 events a step and 10 steps a
# second it lasts for four days.
MAX_WRITTEN_BYTES: Final = 1 << 31

# kind u8, flags u8, thread u16, site u32, start ns u64, end ns u64, value u64
RECORD: Final = struct.Struct("<BBHIQQQ")
RECORD_BYTES: Final = RECORD.size
assert RECORD_BYTES == 32
# The same bytes, made by this machine's own rules in three quarters of the time, where they agree.
_NATIVE: Final = struct.Struct("@BBHINNN")
NATIVE_RECORD: Final = (
    _NATIVE if _NATIVE.pack(1, 2, 3, 4, 5, 6, 7) == RECORD.pack(1, 2, 3, 4, 5, 6, 7) else RECORD
)

# A text is spread over records of kind TEXT: flags = Topic, thread = part number (the last part
# carries LAST_PART), site = the text's id, and 24 bytes of UTF-8 in place of start, end, value.
TEXT_RECORD: Final = struct.Struct("<BBHI24s")
TEXT_PART_BYTES: Final = 24
LAST_PART: Final = 0x8000


class Stop(IntEnum):
    """Why recording stopped where no errno tells; those stay far below."""

    LARGE = 1 << 16  # MAX_WRITTEN_BYTES were reached
    LITTLE_ROOM = (1 << 16) + 1  # what is free of the disk is left to the script


class Kind(IntEnum):
    """What a record tells. All times are `time.perf_counter_ns` of the process that wrote it."""

    HOLE = 0
    # bookkeeping
    TEXT = 1
    CLOCK = 2  # start = perf_counter_ns, end = time_ns, read together
    # thread = number used in later records, site = 1 for the main thread, value = native id
    THREAD = 3
    TORCH_IMPORT = 4  # start, end: torch's own import
    # --max-steps (value 1), --max-time (2) or a trial that has enough (3) ended the run at `start`
    LIMIT = 5
    PROCESS_END = 6  # the interpreter reached its end; value = id of the exception's name, or 0
    # loaders; site = loader id
    LOADER_INIT = 10  # iterator creation: worker start, prefetch priming
    LOADER_RESET = 11  # a persistent iterator starts its next pass
    LOADER_NEXT = 12  # value = batches yielded so far in this pass (1 = the first)
    LOADER_END = 13  # a `next` that raised StopIteration; includes worker shutdown
    LOADER_ERROR = 14  # a `next` that raised anything else
    SAMPLER = 15  # the drawing of indices for a worker; value = how many
    FETCH = 16  # dataset[i] and collate; value = samples | collate ns << COLLATE_SHIFT
    LOADER_CLOSE = 17  # workers shut down otherwise: an iterator that is given up before its end
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
    # site; value = bytes, 0 where that is not known; flags = Writer. A library's has those of its
    # files inside
    CHECKPOINT_SAVE = 32
    CHECKPOINT_LOAD = 33  # site
    GC = 34  # value = generation
    CLOSURE = 35  # never written: the analysis puts it where an optimizer's step calls one
    # details: all but COMPILE do not nest, and say more about what a record above tells. Those of a
    # FETCH have its start, flags = how many fetches this one stands for (not every one is measured)
    FETCH_CPU = 64  # end - start = CPU of the thread; value = of the process, ns; site = run delay
    FETCH_IO = 65  # site = throttled time; value = bytes read | major faults << FAULTS_SHIFT
    FETCH_READING = 66  # end - start = time the thread waited for block devices
    FETCH_BATCH = 67  # value = bytes of the batch; site = arrays in it
    SLOW_SAMPLE = 68  # one `dataset[i]`; value = i, or its place in the batch; flags = SlowSample
    # inside a LOADER_NEXT, site = loader id; end - start = blocked; flags = NextParts;
    # value = ns of receiving, CPU us of the thread meanwhile << RECEIVE_CPU_SHIFT
    NEXT_PARTS = 69
    PIN = 70  # a batch being pinned
    # start, end as of its loader's LOADER_INIT, site = loader id, value = pid, flags = number + 1
    WORKER = 71
    WORKER_LOST = 72  # found at `start`; site = loader id, value = pid | exit code << 32
    # Cumulative: end - start = waited for devices by --cuda-sync so far; value = how often
    SYNCHRONIZED = 73
    # An event put into a device's stream at `start`, seen reached at `end`; site = device; value =
    # ns (signed) on the device since the thread's mark before; flags = DeviceMark
    DEVICE_MARK = 74
    # What a thread was running, wanted at `start` and taken at `end`; site = stack;
    # flags = StackFlag; value = ns for which Python code that let nobody else run any went on
    STACK_SAMPLE = 75
    # In a trial: from here on a loader's batches are copies of earlier ones; site = loader id,
    # value = how many there are
    FREE_DATA = 76
    # torch.compile at work, inside whatever made it; site; flags = Compile; value = how often the
    # same code had been compiled before
    COMPILE = 77
    # A call of torch.distributed in which a rank may wait for others, of several inside one another
    # the outermost; site; flags = place in COLLECTIVES
    COLLECTIVE = 78
    # A DataLoader is iterated for the first time; site = loader id, value = a number that no other
    # dataset of the process has had, or 0
    LOADER_BUILT = 79
    # Cumulative, so that the last of a line counts: site = function id, flags and thread = line
    # number, high and low bits; end - start = total time; value = hits.
    LINE = 80  # 81 told of C code in lines, in older runs
    LOADER_PASS = 82  # one begins; site = loader id, value = stack of who goes through it, or 0
    # `start`: an optimizer's step, which was given a closure, goes on to change parameters
    UPDATE_BEGINS = 83  # 84 told of other threads at work, in older runs
    # One figure of a device's allocator, read between two phases at `start`, which took end -
    # start; site = device, flags = MemoryFigure. Only those that changed since the last BURST.
    DEVICE_MEMORY = 90
    # While torch's sync debug mode was on: a call that waits for a device in native code, at
    # `start`; site; flags = FoundSync
    FOUND_SYNC = 91
    # When that mode was on, from `start` to `end` (equal: not yet off); site = steps before it,
    # value = steps in it. Cumulative, so that the last counts
    SYNC_WINDOW = 92
    # torch gave memory that it had kept back to a device; site
    CACHE_EMPTIED = 93  # 94 and 95 numbered samplers and collate functions, in older runs


# In the order of their numbers: new ones come last.
COLLECTIVES: Final = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object"),
    *("barrier", "monitored_barrier", "broadcast", "broadcast_object_list"),
    *("gather", "gather_object", "reduce", "reduce_scatter", "reduce_scatter_tensor"),
    *("scatter", "scatter_object_list", "all_to_all", "all_to_all_single", "send", "recv"),
    "wait",  # for one that was begun beforehand
)
# A FETCH record's value: samples below this bit, the ns of the collate that ended it above.
COLLATE_SHIFT: Final = 24
# A NEXT_PARTS record's value.
RECEIVE_CPU_SHIFT: Final = 40
# A FETCH_IO record's value.
FAULTS_SHIFT: Final = 44
# In `site` of FETCH_CPU and FETCH_IO, which are in us: the kernel does not tell.
NOT_TOLD: Final = 0xFFFFFFFF


# In a STACK text.
FETCHED: Final = 0


class Topic(IntEnum):
    """What a TEXT record's text describes; the text is one JSON value."""

    SITE = 1  # [file, line, function]
    LOADER = 2  # facts of a DataLoader, see inside/loading/loader_metadata.py
    CLASS = 3  # qualified class name
    OPTIMIZER = 4  # class name
    PROBE_FAILED = 5  # {probe, error}
    PROBE_UNAVAILABLE = 6  # {probe, reason}
    EXCEPTION = 7  # class name of the exception that ended the script
    RECORDING_STOPPED = 8  # {reason, at_ns}
    # {torch, cuda, hip} at torch's import; {launch_blocking} where CUDA_LAUNCH_BLOCKING was set;
    # {torch_threads, looped_optimizer: {class, tensors, site}, numerics: {parameters, products}}
    # {own_optimizer: {class, tensors, site}, cores_allotted, optimizer: its number, backward_nodes,
    # convolves_in_float64, decomposes_in_float64} at an optimizer's first step;
    # {detects_anomalies} once it was on for many backward passes;
    # {device} when it is first seen in use;
    # {rank, world_size, backend} on joining a process group;
    # {changed_dataset: {loader, attribute}}: it was another when the loader's next pass began;
    # {worker_threads: {torch, set_at}, number} in a loader's worker: those that torch
    # computes with, and the script's line that set them there (0: none), from then on;
    # {first_samples: {base_seed, checksums}} of an IterableDataset, in one of several workers;
    # {asked_for_worker} once something called get_worker_info()
    ENVIRONMENT = 9
    # {file, line, name, why, source}: a function whose lines are timed; `source` names the file in
    # sources/ that holds its text as run, or is null
    LINE_FUNCTION = 10
    # [site id]: the user's frames of a stack, innermost first; of a deep one both ends. FETCHED
    # stands where torch makes a batch: what comes before it is the dataset's. Ahead of them may be
    # a list of site ids, outermost first: the functions of libraries that the innermost has called.
    # Until the first step [package, function] comes first: which package is being imported, and
    # which function of a library called the user's innermost frame, or is outermost without one
    STACK = 11
    # Of a trial: {applied{}, refused{name: why}}: what was changed; {losses[]}: of the first
    # backward passes; {uncontained[]}: what wrote outside of the trial's own place;
    # {copied{path: bytes}}: a large file that the script opened to change it in place;
    # {moved{path: bytes}}: a directory that it moved, and that was copied for it
    TRIAL = 12
    # {device, place: [file, line, function], requested_bytes, ...}: a device ran out of memory,
    # and the process ended by that; see inside/device/out_of_memory.py
    OUT_OF_MEMORY = 20


class Writer(IntEnum):
    """What a checkpoint was written with."""

    TORCH = 0  # torch.save
    SAFETENSORS = 1  # one file, by save_file and the like
    TRANSFORMERS = 2  # a whole checkpoint by the Trainer of Hugging Face, as those below are
    LIGHTNING = 3
    ACCELERATE = 4
    DISTRIBUTED = 5  # torch.distributed.checkpoint


class StackFlag(IntEnum):
    """Bits of a STACK_SAMPLE record's flags."""

    KNOWN = 1  # else the thread had gone on before it could be looked at
    WAITS = 2  # in Python's own code that waits for another thread or process
    CROWDED = 4  # others may have run Python code at that moment
    RUNS = 16  # had a core, or waited for one, while the interpreter was free
    OPERATOR = 32  # the same, in code of the user's or that has torch: as its operators do
    ARRAYS = 64  # the same, in code of a library's that has NumPy or SciPy and no torch


class NextPartsFlag(IntEnum):
    """Bits of a NEXT_PARTS record's flags."""

    CPU_TOLD = 1


class TransferFlag(IntEnum):
    """Bits of a TRANSFER record's flags."""

    H2D = 1
    D2H = 2
    D2D = 4
    PINNED = 8
    NON_BLOCKING = 16
    BY_LIBRARY = 32  # no code of the user's called the tensor's own method
    MADE_THERE = 64  # by the text of the line one of torch's functions makes the tensor there


class ForwardFlag(IntEnum):
    """Bits of a FORWARD or LOSS record's flags."""

    GRAD = 1  # grad mode was on
    TRAINING = 2  # module.training


class SlowSampleFlag(IntEnum):
    """Bits of a SLOW_SAMPLE record's flags."""

    IS_INDEX = 1  # value is the index that the dataset was asked for


class CompileFlag(IntEnum):
    """Bits of a COMPILE record's flags."""

    TOLD = 1  # torch told how often it was compiled before
    LATER_PART = 2  # the backward of what was compiled before, or the like
    # Why there is another version, as torch says:
    OTHER_MODE = 4  # training or evaluation, with or without gradients
    OTHER_NUMBER = 8  # a number that Python holds
    OTHER_SHAPE = 16


class DeviceMarkFlag(IntEnum):
    """Bits of a DEVICE_MARK record's flags."""

    FIRST = 1  # there is none before it
    # 2 and 4 told in older runs that the device had been made to wait.


class SyncFlag(IntEnum):
    """Flags of a SYNC record: which call, plus ON_CPU when the tensor lived on the host.

    IN_CHAIN where another value had been read just before, as quickly as this line's last one was:
    no mark was put into the device's stream. BY_TORCH where the call itself is in torch's code,
    BY_LIBRARY where it, or what torch's was called from, is in a package's; of host tensors that is
    not told.
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
    """Flags of a DEVICE_MEMORY record: what its value is, in bytes or a count."""

    BURST = 0  # nothing: readings before this one were made at other times
    ALLOCATED = 1  # in tensors
    RESERVED = 2  # taken from the device, in tensors or kept for later ones
    PEAK_ALLOCATED = 3  # since the start, or since the script has reset it
    PEAK_RESERVED = 4
    RETRIES = 6  # allocations that only succeeded once what was kept had been given back
    OUT_OF_MEMORY = 7  # errors raised
    LIMIT = 8  # bytes that this process may take from the device


class FoundSyncFlag(IntEnum):
    """Bits of a FOUND_SYNC record's flags."""

    KNOWN = 1  # the call is recorded as SYNC or TRANSFER anyway
