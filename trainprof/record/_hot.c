/* The hot path in C: the cursor of the event log, and wrappers of the calls of a training step.

Each type and hook has a twin in Python that does the same (record/event_log.py, the probes in
inside/spans); what is rare is left to it. A wrapper claims its original's class and attributes, so
that `inspect`, pickle, torch.jit and torch.compile treat it as the original. It adds no frame.

Nothing here runs Python code between taking a record's place and writing it, and the GIL is held:
neither a thread nor a signal handler of the script comes in between. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <pythread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

/* Keeps what is rare out of the cache lines of what is not: torch evicts both in each step. */
#if defined(__GNUC__)
#define COLD __attribute__((cold, noinline))
#else
#define COLD
#endif

/* As schema.RECORD. */
typedef struct {
    uint8_t kind, flags;
    uint16_t thread;
    uint32_t site;
    uint64_t start, end, value;
} Record;
#define RECORD_BYTES 32
_Static_assert(sizeof(Record) == RECORD_BYTES, "a record has 32 bytes");

static PyObject *perf_counter_ns;
/* Whether CLOCK_MONOTONIC is Python's performance counter here. */
static int is_monotonic;

/* Names of attributes and keys, interned. */
enum {
    WATCHERS,
    NUM_YIELDED,
    STATE,
    TRAINING,
    HOLDS,
    COMPILING,
    QUALNAME,
    NAMES
};
static const char *const texts[NAMES] = {
    "watchers", "_num_yielded", "_trainprof", "training", "holds", "_is_compiling_flag",
    "__qualname__",
};
static PyObject *names_of[NAMES];
#define NAME(which) names_of[which]

/* --- small helpers --- */

/* An error of the wrapped call, kept while we record. */
typedef struct {
    PyObject *type, *value, *traceback;
} Kept;

COLD static Kept fetch_error(void) {
    Kept kept;
    PyErr_Fetch(&kept.type, &kept.value, &kept.traceback);
    return kept;
}

static inline Kept keep_error(PyObject *result) {
    return result == NULL ? fetch_error() : (Kept){NULL, NULL, NULL};
}

/* Returns NULL with the kept error or, if recording raised, with that one: only a signal handler of
   the script raises there. */
COLD static PyObject *raise_again(PyObject *result, Kept kept, int failed) {
    if (!failed) {
        PyErr_Restore(kept.type, kept.value, kept.traceback);
        return NULL;
    }
    Py_XDECREF(result);
    if (kept.type == NULL)
        return NULL;
    Kept new = fetch_error(); /* in whose context the kept one was raised, as in a `finally` */
    PyErr_NormalizeException(&new.type, &new.value, &new.traceback);
    PyErr_NormalizeException(&kept.type, &kept.value, &kept.traceback);
    if (kept.traceback != NULL)
        PyException_SetTraceback(kept.value, kept.traceback);
    if (new.value != kept.value)
        PyException_SetContext(new.value, Py_NewRef(kept.value));
    Py_XDECREF(kept.type);
    Py_XDECREF(kept.value);
    Py_XDECREF(kept.traceback);
    PyErr_Restore(new.type, new.value, new.traceback);
    return NULL;
}

/* Returns `result`, or as `raise_again`. */
static inline PyObject *give_back(PyObject *result, Kept kept, int failed) {
    return result == NULL || failed ? raise_again(result, kept, failed) : result;
}

/* Returns an int's value, 0 for anything else. */
static inline uint64_t as_number(PyObject *number) {
    return number != NULL && PyLong_Check(number) ? PyLong_AsUnsignedLongLongMask(number) : 0;
}

static inline uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Frees a call's result; returns whether there is none. */
static inline int has_failed(PyObject *result) {
    Py_XDECREF(result);
    return result == NULL;
}

/* Sets the number of a call's result, which is freed; returns -1 if there is none. */
static inline int take_number(PyObject *result, uint64_t *number) {
    *number = as_number(result);
    return -has_failed(result);
}

/* Reads a clock, NULL for the performance counter; returns -1 with an error set. */
static inline int read_clock(PyObject *clock, uint64_t *ns) {
    if (clock != NULL)
        return take_number(PyObject_CallNoArgs(clock), ns);
    *ns = monotonic_ns();
    return 0;
}

/* Returns dict[id], borrowed, else NULL without an error: comparing ints runs no code. */
static inline PyObject *get_by_id(PyObject *dict, void *id) {
    PyObject *key = PyLong_FromVoidPtr(id);
    PyObject *value = key == NULL ? NULL : PyDict_GetItemWithError(dict, key);
    Py_XDECREF(key);
    PyErr_Clear();
    return value;
}

/* Returns whether a result, which is freed, is true; -1 with the error of the call or of a mode or
   signal handler of the script in it. */
static inline int is_true(PyObject *result) {
    int is_it = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    return is_it;
}

/* Returns an attribute, else NULL: without an error if it is absent. */
static inline PyObject *get_if_there(PyObject *thing, PyObject *name) {
    PyObject *value = PyObject_GetAttr(thing, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return value;
}

/* --- the cursor of the event log --- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *slowly;  /* the log's emit_slowly, for a full buffer, a new thread, odd values */
    PyObject *threads; /* numbers of threads, by identity */
    PyObject *buffer;
    Py_buffer room; /* of `buffer` */
    Py_ssize_t offset;
    unsigned long first_thread;
    uint16_t first_number;
} Recorder;

/* Writes a record; returns 0 if that is not possible here. */
static inline int put(Recorder *self, unsigned number, uint8_t kind, uint64_t start, uint64_t end,
                      uint32_t site, uint64_t value, uint8_t flags) {
    Py_ssize_t at = self->offset;
    if (at + RECORD_BYTES > self->room.len)
        return 0;
    self->offset = at + RECORD_BYTES;
    Record record = {kind, flags, (uint16_t)number, site, start, end, value};
    char *to = (char *)self->room.buf + at;
    /* The kind last: a record that SIGKILL cuts is a hole. */
    memcpy(to + 8, (char *)&record + 8, RECORD_BYTES - 8);
#if defined(__GNUC__)
    __asm__ __volatile__("" ::: "memory");
#endif
    memcpy(to, &record, 8);
    return 1;
}

/* Returns a thread's number, -1 if it has none yet. */
COLD static int number_of_other(Recorder *self, unsigned long thread) {
    PyObject *number = get_by_id(self->threads, (void *)thread);
    return number == NULL ? -1 : (int)as_number(number);
}

/* Returns the calling thread's number, as `number_of_other`. */
static inline int number_of_thread(Recorder *self) {
    unsigned long thread = PyThread_get_thread_ident();
    return thread == self->first_thread ? self->first_number : number_of_other(self, thread);
}

/* Emits a record where `put` cannot; returns -1 with an error of the script's signal handlers. */
COLD static int emit_slowly(Recorder *self, uint8_t kind, uint64_t start, uint64_t end,
                            uint32_t site, uint64_t value, uint8_t flags) {
    return -has_failed(
        PyObject_CallFunction(self->slowly, "iKKIKi", kind, start, end, site, value, flags));
}

/* Emits a record; returns as `emit_slowly`. */
static inline int emit(Recorder *self, uint8_t kind, uint64_t start, uint64_t end, uint32_t site,
                       uint64_t value, uint8_t flags) {
    int number = number_of_thread(self);
    if (number >= 0 && put(self, (unsigned)number, kind, start, end, site, value, flags))
        return 0;
    return emit_slowly(self, kind, start, end, site, value, flags);
}

/* Reads ints of at most `most`; returns 0, without an error, for anything else. */
static inline int read_numbers(PyObject *const *args, Py_ssize_t count, const uint64_t *most,
                               uint64_t *to) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!PyLong_Check(args[i]))
            return 0;
        to[i] = PyLong_AsUnsignedLongLong(args[i]);
        if (to[i] == (uint64_t)-1 && PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
        if (to[i] > most[i])
            return 0;
    }
    return 1;
}

/* emit(kind, start, end, site=0, value=0, flags=0) */
static PyObject *recorder_call(PyObject *callable, PyObject *const *args, size_t nargsf,
                               PyObject *names) {
    static const uint64_t most[] = {0xff, UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT64_MAX, 0xff};
    Recorder *self = (Recorder *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    uint64_t of[6] = {0};
    if (names == NULL && 3 <= count && count <= 6 && read_numbers(args, count, most, of)) {
        int number = number_of_thread(self);
        if (number >= 0 && put(self, (unsigned)number, (uint8_t)of[0], of[1], of[2],
                               (uint32_t)of[3], of[4], (uint8_t)of[5]))
            Py_RETURN_NONE;
    }
    return PyObject_Vectorcall(self->slowly, args, nargsf, names);
}

/* write(kind, flags, thread, site, start, end, value): the thread by its number; returns whether it
   is written. */
static PyObject *recorder_write(PyObject *me, PyObject *const *args, Py_ssize_t count) {
    static const uint64_t most[] = {0xff,       0xff,       0xffff,    UINT32_MAX,
                                    UINT64_MAX, UINT64_MAX, UINT64_MAX};
    uint64_t of[7];
    int written = count == 7 && read_numbers(args, count, most, of) &&
                  put((Recorder *)me, (unsigned)of[2], (uint8_t)of[0], of[4], of[5],
                      (uint32_t)of[3], of[6], (uint8_t)of[1]);
    return PyBool_FromLong(written);
}

/* take(): returns the buffer and the offset of the next record, which the caller writes. */
static PyObject *recorder_take(PyObject *me, PyObject *unused) {
    Recorder *self = (Recorder *)me;
    Py_ssize_t at = self->offset;
    if (at + RECORD_BYTES <= self->room.len)
        self->offset = at + RECORD_BYTES;
    return Py_BuildValue("On", self->buffer, at);
}

static int set_buffer(Recorder *self, PyObject *buffer, Py_ssize_t first) {
    Py_buffer room;
    if (PyObject_GetBuffer(buffer, &room, PyBUF_WRITABLE) < 0)
        return -1;
    Py_buffer before = self->room;
    PyObject *buffer_before = self->buffer;
    self->room = room;
    self->offset = first;
    self->buffer = Py_NewRef(buffer);
    PyBuffer_Release(&before); /* freed after all are set */
    Py_XDECREF(buffer_before);
    return 0;
}

/* use(buffer, first): records go there from now on; returns where those before ended. */
static PyObject *recorder_use(PyObject *me, PyObject *args) {
    Py_ssize_t first, used = ((Recorder *)me)->offset;
    PyObject *buffer;
    if (!PyArg_ParseTuple(args, "On", &buffer, &first) ||
        set_buffer((Recorder *)me, buffer, first) < 0)
        return NULL;
    return PyLong_FromSsize_t(used);
}

/* enter_first(thread, number): the number of the thread of nearly all records. */
static PyObject *recorder_enter_first(PyObject *me, PyObject *args) {
    Recorder *self = (Recorder *)me;
    unsigned long thread;
    unsigned short number;
    if (!PyArg_ParseTuple(args, "kH", &thread, &number))
        return NULL;
    self->first_thread = thread;
    self->first_number = number;
    Py_RETURN_NONE;
}

static PyObject *recorder_new(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *threads, *slowly, *nothing;
    if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &threads, &slowly))
        return NULL;
    Recorder *self = (Recorder *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = recorder_call;
    self->threads = Py_NewRef(threads);
    self->slowly = Py_NewRef(slowly);
    nothing = PyByteArray_FromStringAndSize(NULL, 0);
    if (nothing == NULL || set_buffer(self, nothing, 0) < 0)
        Py_CLEAR(self);
    Py_XDECREF(nothing);
    return (PyObject *)self;
}

static int recorder_traverse(PyObject *me, visitproc visit, void *arg) {
    Recorder *self = (Recorder *)me;
    Py_VISIT(self->slowly);
    Py_VISIT(self->threads);
    Py_VISIT(self->buffer);
    return 0;
}

static void recorder_dealloc(PyObject *me) {
    Recorder *self = (Recorder *)me;
    PyObject_GC_UnTrack(me);
    PyBuffer_Release(&self->room);
    Py_CLEAR(self->slowly);
    Py_CLEAR(self->threads);
    Py_CLEAR(self->buffer);
    Py_TYPE(me)->tp_free(me);
}

static PyMethodDef recorder_methods[] = {
    {"write", (PyCFunction)(void (*)(void))recorder_write, METH_FASTCALL, NULL},
    {"take", recorder_take, METH_NOARGS, NULL},
    {"use", recorder_use, METH_VARARGS, NULL},
    {"enter_first", recorder_enter_first, METH_VARARGS, NULL},
    {NULL},
};

static PyTypeObject RecorderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "trainprof.record._hot.Recorder",
    .tp_basicsize = sizeof(Recorder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = recorder_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Recorder, call),
    .tp_traverse = recorder_traverse,
    .tp_dealloc = recorder_dealloc,
    .tp_methods = recorder_methods,
};

/* --- a batch's samples --- */

static inline PyObject *other_than_ours(PyObject *clock) {
    return is_monotonic && clock == perf_counter_ns ? NULL : Py_NewRef(clock);
}

/* A batch's indices, which note when each is read: then the sample before is done. */
typedef struct {
    PyListObject list;
    PyObject *clock; /* NULL for the performance counter */
    uint64_t *times;
    Py_ssize_t most, count;
} Stamped;

static PyTypeObject StampedType;

/* StampedIndices(indices, clock) */
static int stamped_init(PyObject *me, PyObject *args, PyObject *names) {
    Stamped *self = (Stamped *)me;
    PyObject *indices, *clock;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &indices, &clock) ||
        PyList_SetSlice(me, 0, PyList_GET_SIZE(me), indices) < 0)
        return -1;
    PyMem_Free(self->times);
    self->most = self->count = 0;
    self->times = PyMem_New(uint64_t, (size_t)PyList_GET_SIZE(me));
    if (self->times == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->most = PyList_GET_SIZE(me);
    Py_XSETREF(self->clock, other_than_ours(clock));
    return 0;
}

static void stamped_dealloc(PyObject *me) {
    PyObject_GC_UnTrack(me);
    PyMem_Free(((Stamped *)me)->times);
    Py_CLEAR(((Stamped *)me)->clock);
    PyList_Type.tp_dealloc(me);
}

/* Returns the longest time in ns between two stamps, or from the last one to the end. */
static uint64_t longest(Stamped *self, uint64_t end) {
    uint64_t most = 0, before = self->count > 0 ? self->times[0] : end;
    for (Py_ssize_t i = 1; i < self->count && self->times[i] <= end; i++) {
        if (self->times[i] - before > most)
            most = self->times[i] - before;
        before = self->times[i];
    }
    return before < end && end - before > most ? end - before : most;
}

/* longest(end) */
static PyObject *stamped_longest(PyObject *me, PyObject *end) {
    return PyLong_FromUnsignedLongLong(longest((Stamped *)me, as_number(end)));
}

/* stamps(end): when each index was read, up to `end`. */
static PyObject *stamped_stamps(PyObject *me, PyObject *end) {
    Stamped *self = (Stamped *)me;
    PyObject *stamps = PyList_New(0);
    for (Py_ssize_t i = 0; stamps != NULL && i < self->count; i++) {
        if (self->times[i] > as_number(end))
            break;
        PyObject *stamp = PyLong_FromUnsignedLongLong(self->times[i]);
        if (stamp == NULL || PyList_Append(stamps, stamp) < 0)
            Py_CLEAR(stamps);
        Py_XDECREF(stamp);
    }
    return stamps;
}

typedef struct {
    PyObject_HEAD
    Stamped *of;
    Py_ssize_t at;
} Stamping;

static PyObject *stamping_next(PyObject *me) {
    Stamping *self = (Stamping *)me;
    if (self->at >= PyList_GET_SIZE(self->of)) {
        self->at = PY_SSIZE_T_MAX; /* for good, as a list's iterator */
        return NULL;
    }
    PyObject *index = Py_NewRef(PyList_GET_ITEM(self->of, self->at));
    uint64_t now;
    if (read_clock(self->of->clock, &now) < 0)
        Py_CLEAR(index);
    else if (self->at == self->of->count && self->at < self->of->most)
        self->of->times[self->of->count++] = now; /* of the newest of several iterators */
    self->at++;
    return index;
}

static void stamping_dealloc(PyObject *me) {
    Py_CLEAR(((Stamping *)me)->of);
    Py_TYPE(me)->tp_free(me);
}

static PyTypeObject StampingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "trainprof.record._hot.Stamping",
    .tp_basicsize = sizeof(Stamping),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = stamping_next,
    .tp_dealloc = stamping_dealloc,
};

static PyObject *stamped_iter(PyObject *me) {
    Stamping *iterator = PyObject_New(Stamping, &StampingType);
    if (iterator == NULL)
        return NULL;
    iterator->of = (Stamped *)Py_NewRef(me);
    iterator->at = ((Stamped *)me)->count = 0;
    return (PyObject *)iterator;
}

static PyMethodDef stamped_methods[] = {
    {"longest", stamped_longest, METH_O, NULL},
    {"stamps", stamped_stamps, METH_O, NULL},
    {NULL},
};

static PyTypeObject StampedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "trainprof.record._hot.StampedIndices",
    .tp_base = &PyList_Type,
    .tp_basicsize = sizeof(Stamped),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_init = stamped_init,
    .tp_iter = stamped_iter,
    .tp_dealloc = stamped_dealloc,
    .tp_methods = stamped_methods,
};

/* --- wrappers ---

A wrapper has a hook: what it does around a call. It handles the common call itself and hands every
other one to its twin in Python, which wraps the same original. */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call, call_original;
    PyObject *original, *twin;
    Recorder *recorder;
    PyObject *begin, *end; /* clocks, NULL for the performance counter */
    PyObject *given;       /* tuple: what the hook needs */
    PyObject *dict, *weakrefs;
    uint8_t kind, flags, is_off;
    uint32_t site;
    int64_t limit, left;
    struct Place *places;
} Wrapper;

#define GIVEN(at) PyTuple_GET_ITEM(self->given, at)

/* As hot.State. */
typedef struct {
    PyObject_HEAD
    unsigned long thread;
    unsigned char worker;
    char may_be_stamped, is_stamped;
    unsigned int loader;
    unsigned long long collate_began_ns;
    /* Signed: the twin may count below 0 between two threads. */
    long long samples, samples_ns, short_sample_ns, to_pass, least_ns;
} State;

static PyTypeObject StateType;

#define ORIGINAL() self->call_original(self->original, args, nargsf, names)
#define TWIN() PyObject_Vectorcall(self->twin, args, nargsf, names)
#define BEGIN(start)                                                                               \
    uint64_t start;                                                                                \
    if (read_clock(self->begin, &start) < 0)                                                       \
    return NULL

/* Calls each watcher of a signal with an argument, or none; returns -1 with an error. */
static int call_watchers(PyObject *signal, PyObject *argument) {
    PyObject *watchers = PyObject_GetAttr(signal, NAME(WATCHERS));
    int failed = watchers == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(watchers); i++)
        failed =
            has_failed(PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(watchers, i), argument, NULL));
    Py_XDECREF(watchers);
    return failed ? -1 : 0;
}

/* Returns whether torch.compile traces; `names` are those of torch.compiler. */
static inline int is_compiling(PyObject *names) {
    PyObject *flag = PyDict_GetItemWithError(names, NAME(COMPILING));
    if (flag == NULL) /* comparing names runs no code */
        PyErr_Clear();
    return flag == Py_True;
}

/* timed: the call is recorded. Given, or None: names of torch.compiler; a State, and the threads
   of others, in whose calls this one is not recorded; is_grad_enabled, for a flag; the function
   that returns the site; a signal whose watchers the twin calls before; a signal called afterwards;
   a function, and the signal that is called if it returns True. */
static PyObject *call_timed(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    enum { COMPILER, INSIDE, OTHERS, GRAD, SITE, BEFORE, AFTER, IF, THEN };
    Wrapper *self = (Wrapper *)me;
    if (GIVEN(INSIDE) != Py_None) {
        if (((State *)GIVEN(INSIDE))->thread == PyThread_get_thread_ident())
            return ORIGINAL();
        if (PySet_GET_SIZE(GIVEN(OTHERS)) > 0)
            return TWIN();
    }
    if (GIVEN(COMPILER) != Py_None && is_compiling(GIVEN(COMPILER)))
        return ORIGINAL();
    if (GIVEN(BEFORE) != Py_None) {
        int is_watched = is_true(PyObject_GetAttr(GIVEN(BEFORE), NAME(WATCHERS)));
        if (is_watched != 0)
            return is_watched < 0 ? NULL : TWIN();
    }
    if (GIVEN(SITE) != Py_None && self->site == 0) {
        uint64_t site;
        if (take_number(PyObject_CallNoArgs(GIVEN(SITE)), &site) < 0)
            return NULL;
        self->site = (uint32_t)site;
    }
    BEGIN(start);
    PyObject *result = ORIGINAL();
    uint64_t end;
    Kept kept = keep_error(result);
    int has_grad = 0, is_then = 0;
    int failed =
        read_clock(self->end, &end) < 0 ||
        (GIVEN(GRAD) != Py_None && (has_grad = is_true(PyObject_CallNoArgs(GIVEN(GRAD)))) < 0) ||
        emit(self->recorder, self->kind, start, end, self->site, 0, (uint8_t)has_grad) < 0 ||
        (GIVEN(AFTER) != Py_None && call_watchers(GIVEN(AFTER), NULL) < 0) ||
        (GIVEN(IF) != Py_None && (is_then = is_true(PyObject_CallNoArgs(GIVEN(IF)))) < 0) ||
        (is_then && call_watchers(GIVEN(THEN), NULL) < 0);
    return give_back(result, kept, failed);
}

/* step: an optimizer's. Given the optimizers' numbers, threads in a closure, the signal after
   steps, names of torch.compiler. The twin records first steps. */
static PyObject *call_step(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    enum { NUMBERS, CALLING, ON_STEP, COMPILER };
    Wrapper *self = (Wrapper *)me;
    int is_plain_call = PyVectorcall_NARGS(nargsf) == 1 && names == NULL;
    PyObject *number = is_plain_call ? get_by_id(GIVEN(NUMBERS), args[0]) : NULL;
    if (number == NULL || PySet_GET_SIZE(GIVEN(CALLING)) > 0)
        return TWIN();
    if (is_compiling(GIVEN(COMPILER)))
        return ORIGINAL();
    uint32_t site = (uint32_t)as_number(number);
    BEGIN(start);
    PyObject *result = ORIGINAL();
    uint64_t end;
    if (result != NULL && (read_clock(self->end, &end) < 0 ||
                           emit(self->recorder, self->kind, start, end, site, 0, 0) < 0 ||
                           call_watchers(GIVEN(ON_STEP), args[0]) < 0))
        Py_CLEAR(result);
    return result;
}

/* Returns whether a module is in training mode, -1 with an error. */
static int is_training(PyObject *module, PyObject *ask) {
    PyObject *own = PyObject_GenericGetDict(module, NULL);
    if (own == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    PyObject *mode = own == NULL ? NULL : PyDict_GetItemWithError(own, NAME(TRAINING));
    int is_it = mode == Py_True;
    if (mode == NULL && PyErr_Occurred())
        is_it = -1;
    else if (mode == NULL || mode == Py_None)
        is_it = is_true(PyObject_CallOneArg(ask, module));
    Py_XDECREF(own);
    return is_it;
}

/* module: `Module.__call__`, outermost. Given a State, threads of others, (kind, number) of
   classes by id, is_grad_enabled, is_training. `kind` is FORWARD. The twin records calls of new
   classes, and all while they are watched. */
static PyObject *call_module(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    enum { INSIDE, OTHERS, CLASSES, GRAD, IS_TRAINING };
    Wrapper *self = (Wrapper *)me;
    State *inside = (State *)GIVEN(INSIDE);
    unsigned long thread = PyThread_get_thread_ident();
    if (thread == inside->thread || PyVectorcall_NARGS(nargsf) == 0)
        return ORIGINAL();
    if (PySet_GET_SIZE(GIVEN(OTHERS)) > 0)
        return TWIN();
    PyObject *known = NULL;
    if (inside->thread == 0)
        known = get_by_id(GIVEN(CLASSES), Py_TYPE(args[0]));
    if (known == NULL || !PyTuple_Check(known))
        return TWIN();
    uint8_t kind = (uint8_t)as_number(PyTuple_GET_ITEM(known, 0));
    uint32_t site = (uint32_t)as_number(PyTuple_GET_ITEM(known, 1));
    BEGIN(start);
    if (inside->thread != 0) /* another thread's, while a clock in Python was read */
        return TWIN();
    inside->thread = thread;
    PyObject *result = ORIGINAL();
    uint64_t end;
    Kept kept = keep_error(result);
    inside->thread = 0;
    int has_grad = 0, mode = 0;
    int failed =
        read_clock(self->end, &end) < 0 ||
        (has_grad = is_true(PyObject_CallNoArgs(GIVEN(GRAD)))) < 0 ||
        (kind == self->kind && (mode = is_training(args[0], GIVEN(IS_TRAINING))) < 0) ||
        emit(self->recorder, kind, start, end, site, 0, (uint8_t)(has_grad | mode << 1)) < 0;
    return give_back(result, kept, failed);
}

/* next: given loaders by iterators' ids, the log's unwritten texts, the functions called at the end
   and with the first batch. `kind` is LOADER_NEXT; LOADER_END and LOADER_ERROR follow. */
static PyObject *call_next(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    Wrapper *self = (Wrapper *)me;
    if (PyVectorcall_NARGS(nargsf) != 1 || names != NULL) /* which it refuses */
        return ORIGINAL();
    if (PySet_GET_SIZE(GIVEN(1)) > 0)
        return TWIN();
    uint32_t loader = (uint32_t)as_number(get_by_id(GIVEN(0), args[0]));
    BEGIN(start);
    PyObject *iterator = Py_NewRef(args[0]); /* a nested call may drop the caller's reference */
    PyObject *batch = ORIGINAL();
    uint64_t end, number = 0;
    int is_end = batch == NULL && PyErr_Occurred() == PyExc_StopIteration;
    Kept kept = keep_error(batch);
    int failed = read_clock(self->end, &end) < 0;
    uint8_t kind = (uint8_t)(self->kind + (batch != NULL ? 0 : is_end ? 1 : 2));
    if (!failed && batch != NULL)
        failed = take_number(get_if_there(iterator, NAME(NUM_YIELDED)), &number) < 0 &&
                 PyErr_Occurred() != NULL;
    failed = failed || emit(self->recorder, kind, start, end, loader, number, 0) < 0;
    if (!failed && (is_end || number == 1))
        failed =
            has_failed(PyObject_CallFunctionObjArgs(GIVEN(is_end ? 2 : 3), iterator, batch, NULL));
    Py_DECREF(iterator);
    return give_back(batch, kept, failed);
}

/* Ends a stamped fetch, whose samples were done at `end`, and records slow ones; returns -1 with
   an error. */
static int end_stamped(State *state, PyObject *stamped, uint64_t start, uint64_t end, State *slow,
                       PyObject *record) {
    state->samples += ((Stamped *)stamped)->most;
    state->samples_ns += (long long)(end - start);
    state->is_stamped = state->samples_ns >= state->samples * state->short_sample_ns;
    if (longest((Stamped *)stamped, end) < (uint64_t)slow->least_ns)
        return 0;
    return -has_failed(PyObject_CallFunction(record, "OKI", stamped, end, state->loader));
}

/* fetch: given two States, of the meter of usage and of the slow samples, each with a function that
   is called with what took its `least_ns` or longer. The twin makes a fetcher's first call, and
   those that are measured. */
static PyObject *call_fetch(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    enum { METER, TOOK, SLOW, RECORD };
    Wrapper *self = (Wrapper *)me;
    State *meter = (State *)GIVEN(METER);
    if (PyVectorcall_NARGS(nargsf) != 2)
        return names == NULL ? ORIGINAL() : TWIN();
    if (names != NULL)
        return ORIGINAL();
    PyObject *held = get_if_there(args[0], NAME(STATE));
    State *state = (State *)held;
    if (held == NULL || !Py_IS_TYPE(held, &StateType) || meter->to_pass <= 0) {
        Py_XDECREF(held);
        return PyErr_Occurred() != NULL ? NULL : TWIN();
    }
    int is_list = PyList_CheckExact(args[1]);
    uint64_t start, end = 0, value = is_list ? (uint64_t)PyList_GET_SIZE(args[1]) : 1;
    int is_stamped = state->is_stamped && is_list;
    PyObject *asked[] = {args[0], args[1]};
    if (is_stamped) {
        PyObject *clock = self->begin == NULL ? perf_counter_ns : self->begin;
        asked[1] = PyObject_CallFunctionObjArgs((PyObject *)&StampedType, args[1], clock, NULL);
    }
    PyObject *stamped = is_stamped ? asked[1] : NULL;
    if (asked[1] == NULL || read_clock(self->begin, &start) < 0) {
        Py_XDECREF(stamped);
        Py_DECREF(held);
        return NULL;
    }
    meter->to_pass--;
    state->collate_began_ns = 0;
    PyObject *batch = self->call_original(self->original, asked, 2, NULL);
    Kept kept = keep_error(batch);
    int failed = read_clock(self->end, &end) < 0;
    uint64_t collated = state->collate_began_ns == 0 ? 0 : end - state->collate_began_ns;
    value |= collated << 24;
    if (!failed && end - start >= (uint64_t)meter->least_ns)
        failed = has_failed(PyObject_CallFunction(GIVEN(TOOK), "K", end - start));
    failed = failed ||
             emit(self->recorder, self->kind, start, end, state->loader, value, state->worker) < 0;
    if (!failed && stamped != NULL)
        failed = end_stamped(state, stamped, start, end - collated, (State *)GIVEN(SLOW),
                             GIVEN(RECORD)) < 0;
    Py_XDECREF(stamped);
    Py_DECREF(held);
    return give_back(batch, kept, failed);
}

/* collate: given the State. */
static PyObject *call_collate(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    Wrapper *self = (Wrapper *)me;
    BEGIN(start);
    ((State *)GIVEN(0))->collate_began_ns = start;
    return ORIGINAL();
}

/* copy: a tensor's, to a device or another dtype. Given the function that gets the call's begin,
   its result and its arguments, unless that returned its first argument, as most do. */
static PyObject *call_copy(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    Wrapper *self = (Wrapper *)me;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    Py_ssize_t all = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    BEGIN(start);
    PyObject *result = ORIGINAL();
    if (result == NULL || count == 0 || result == args[0])
        return result;
    /* On the stack: a call with many arguments has failed. */
    PyObject *more[all + 2], *began = PyLong_FromUnsignedLongLong(start), *done = NULL;
    more[0] = began;
    more[1] = result;
    memcpy(more + 2, args, (size_t)all * sizeof(PyObject *));
    if (began != NULL)
        done = PyObject_Vectorcall(GIVEN(0), more, (size_t)count + 2, names);
    Py_XDECREF(began);
    if (has_failed(done))
        Py_CLEAR(result);
    return result;
}

/* --- reads of tensors on the host --- */

enum { PLACES = 32 };

/* A place in code that reads a value, and its site: 0 if not the user's code. */
struct Place {
    PyObject *code;
    int instruction;
    uint32_t site;
};

static inline int instruction_of(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030b0000
    return PyFrame_GetLasti(frame);
#else
    return frame->f_lasti * 2;
#endif
}

/* Sets the site of the calling line; returns -1 with an error of ours or of a signal handler. */
static int site_of_caller(Wrapper *self, PyObject *find, uint32_t *site) {
    PyFrameObject *frame = PyEval_GetFrame();
    *site = 0;
    if (frame == NULL)
        return 0;
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    int instruction = instruction_of(frame);
    size_t at = ((size_t)code >> 5 ^ (size_t)instruction) % PLACES;
    struct Place *place = &self->places[at];
    if (place->code == code && place->instruction == instruction) {
        *site = place->site;
        Py_DECREF(code);
        return 0;
    }
    uint64_t number;
    if (take_number(PyObject_CallOneArg(find, (PyObject *)frame), &number) < 0) {
        Py_DECREF(code);
        return -1;
    }
    place->instruction = instruction;
    place->site = *site = (uint32_t)number;
    Py_XSETREF(place->code, code);
    return 0;
}

static inline int is_plain(PyObject *tensor, PyObject *types) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++)
        if ((PyObject *)Py_TYPE(tensor) == PyTuple_GET_ITEM(types, i))
            return 1;
    return 0;
}

/* read: given the plain types, the object that says whether all tensors are on the host, the
   function that returns a frame's site, the bursts, whose `end` returns whether reads are counted
   from then on: of `limit` reads, `left` are left in this one. */
static PyObject *call_read(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    enum { TYPES, HOST_ONLY, FIND, BURSTS };
    Wrapper *self = (Wrapper *)me;
    int are_on_host = is_true(PyObject_GetAttr(GIVEN(HOST_ONLY), NAME(HOLDS)));
    if (are_on_host < 0)
        return NULL;
    if (PyVectorcall_NARGS(nargsf) == 0 || !are_on_host)
        return TWIN();
    if (self->is_off || !is_plain(args[0], GIVEN(TYPES)))
        return ORIGINAL();
    BEGIN(start);
    PyObject *result = ORIGINAL();
    Kept kept = keep_error(result);
    uint32_t site;
    int failed = site_of_caller(self, GIVEN(FIND), &site) < 0;
    if (!failed && site != 0) {
        failed = emit(self->recorder, self->kind, start, start, site, 0, self->flags) < 0;
        if (!failed && --self->left <= 0) {
            int are_counted = is_true(PyObject_CallMethod(GIVEN(BURSTS), "end", NULL));
            failed = are_counted < 0;
            self->left = self->limit;
            self->is_off = are_counted == 0;
        }
    }
    return give_back(result, kept, failed);
}

/* caller: given the function that returns 0 for a calling line of torch's, which gets no twin. */
static PyObject *call_caller(PyObject *me, PyObject *const *args, size_t nargsf, PyObject *names) {
    Wrapper *self = (Wrapper *)me;
    uint32_t site;
    if (site_of_caller(self, GIVEN(0), &site) < 0)
        return NULL;
    return site == 0 ? ORIGINAL() : TWIN();
}

/* --- the wrapper --- */

static const struct {
    const char *name;
    vectorcallfunc call;
    const char *given; /* types: dict, set, tuple, a State as i; any other as o; D, I, S: or None */
} hooks[] = {
    {"timed", call_timed, "DISoooooo"}, {"step", call_step, "dsod"},
    {"module", call_module, "isdoo"},   {"next", call_next, "dsoo"},
    {"fetch", call_fetch, "ioio"},      {"collate", call_collate, "i"},
    {"copy", call_copy, "o"},           {"read", call_read, "tooo"},
    {"caller", call_caller, "o"},
};

/* Returns whether a hook is given what it needs, which calls do not check. */
static int is_given(PyObject *given, const char *types) {
    if (PyTuple_GET_SIZE(given) != (Py_ssize_t)strlen(types))
        return 0;
    for (Py_ssize_t i = 0; types[i] != 0; i++) {
        PyObject *thing = PyTuple_GET_ITEM(given, i);
        char type = Py_TOLOWER(types[i]);
        int is_it = type == 'd'   ? PyDict_Check(thing)
                    : type == 's' ? PyAnySet_Check(thing)
                    : type == 't' ? PyTuple_Check(thing)
                    : type == 'i' ? Py_IS_TYPE(thing, &StateType)
                                  : 1;
        if (!is_it && (type == types[i] || thing != Py_None))
            return 0;
    }
    return 1;
}

/* Wrapper(hook, original, twin, recorder, begin, end, given, kind=0, flags=0, limit=0) */
static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"hook",  "original", "twin",  "recorder", "begin", "end",
                            "given", "kind",     "flags", "limit",    NULL};
    const char *hook;
    PyObject *original, *twin, *recorder, *begin, *end, *given;
    unsigned char kind = 0, flags = 0;
    long long limit = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "sOOO!OOO!|bbL", names, &hook, &original,
                                     &twin, &RecorderType, &recorder, &begin, &end, &PyTuple_Type,
                                     &given, &kind, &flags, &limit))
        return NULL;
    size_t at = 0;
    while (at < Py_ARRAY_LENGTH(hooks) && strcmp(hooks[at].name, hook) != 0)
        at++;
    if (at == Py_ARRAY_LENGTH(hooks) || !is_given(given, hooks[at].given))
        return PyErr_Format(PyExc_ValueError, "no hook %s that is given this", hook);
    struct Place *places = NULL;
    if ((hooks[at].call == call_read || hooks[at].call == call_caller) &&
        (places = PyMem_Calloc(PLACES, sizeof(struct Place))) == NULL)
        return PyErr_NoMemory();
    Wrapper *self = (Wrapper *)type->tp_alloc(type, 0);
    if (self == NULL) {
        PyMem_Free(places);
        return NULL;
    }
    self->places = places;
    self->call = hooks[at].call;
    /* What PyObject_Vectorcall looks up at each call: a class of the script may replace it. */
    if (!PyType_HasFeature(Py_TYPE(original), Py_TPFLAGS_HEAPTYPE))
        self->call_original = PyVectorcall_Function(original);
    if (self->call_original == NULL)
        self->call_original = PyObject_Vectorcall;
    self->original = Py_NewRef(original);
    self->twin = Py_NewRef(twin);
    self->recorder = (Recorder *)Py_NewRef(recorder);
    self->begin = other_than_ours(begin);
    self->end = other_than_ours(end);
    self->given = Py_NewRef(given);
    self->kind = kind;
    self->flags = flags;
    self->limit = self->left = limit;
    return (PyObject *)self;
}

static int wrapper_traverse(PyObject *me, visitproc visit, void *arg) {
    Wrapper *self = (Wrapper *)me;
    Py_VISIT(self->original);
    Py_VISIT(self->twin);
    Py_VISIT(self->recorder);
    Py_VISIT(self->begin);
    Py_VISIT(self->end);
    Py_VISIT(self->given);
    Py_VISIT(self->dict);
    return 0;
}

static void wrapper_dealloc(PyObject *me) {
    Wrapper *self = (Wrapper *)me;
    PyObject_GC_UnTrack(me);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(me);
    for (int i = 0; self->places != NULL && i < PLACES; i++)
        Py_XDECREF(self->places[i].code);
    PyMem_Free(self->places);
    Py_CLEAR(self->original);
    Py_CLEAR(self->twin);
    Py_CLEAR(self->recorder);
    Py_CLEAR(self->begin);
    Py_CLEAR(self->end);
    Py_CLEAR(self->given);
    Py_CLEAR(self->dict);
    Py_TYPE(me)->tp_free(me);
}

/* Binds like a function. */
static PyObject *wrapper_get(PyObject *me, PyObject *instance, PyObject *owner) {
    if (instance == NULL || instance == Py_None)
        return Py_NewRef(me);
    return PyMethod_New(me, instance);
}

/* What the wrapper does not have is the original's: `__code__`, `__defaults__`, `__self__`. */
static PyObject *wrapper_getattro(PyObject *me, PyObject *name) {
    PyObject *value = PyObject_GenericGetAttr(me, name);
    if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return value;
    PyErr_Clear();
    return PyObject_GetAttr(((Wrapper *)me)->original, name);
}

static PyObject *wrapper_repr(PyObject *me) {
    return PyObject_Repr(((Wrapper *)me)->original);
}

static PyObject *wrapper_class(PyObject *me, void *unused) {
    return PyObject_GetAttrString(((Wrapper *)me)->original, "__class__");
}

/* By name, as a function; a copy is the same one. The collate function, which has no name of its
   own, as its twin. */
static PyObject *wrapper_reduce(PyObject *me, PyObject *unused) {
    Wrapper *self = (Wrapper *)me;
    if (self->call == call_collate)
        return PyObject_CallMethod(self->twin, "__reduce__", NULL);
    return PyObject_GetAttr(me, NAME(QUALNAME));
}

static PyMemberDef wrapper_members[] = {
    {"_trainprof_twin", T_OBJECT_EX, offsetof(Wrapper, twin), READONLY, NULL},
    {NULL},
};

static PyGetSetDef wrapper_attributes[] = {
    {"__class__", wrapper_class, NULL, NULL, NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyMethodDef wrapper_methods[] = {
    {"__reduce__", wrapper_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject WrapperType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "trainprof.record._hot.Wrapper",
    .tp_basicsize = sizeof(Wrapper),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = wrapper_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Wrapper, call),
    .tp_traverse = wrapper_traverse,
    .tp_dealloc = wrapper_dealloc,
    .tp_descr_get = wrapper_get,
    .tp_getattro = wrapper_getattro,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_repr = wrapper_repr,
    .tp_dictoffset = offsetof(Wrapper, dict),
    .tp_weaklistoffset = offsetof(Wrapper, weakrefs),
    .tp_members = wrapper_members,
    .tp_getset = wrapper_attributes,
    .tp_methods = wrapper_methods,
};

static PyMemberDef state_members[] = {
    {"thread", T_ULONG, offsetof(State, thread), 0, NULL},
    {"worker", T_UBYTE, offsetof(State, worker), 0, NULL},
    {"may_be_stamped", T_BOOL, offsetof(State, may_be_stamped), 0, NULL},
    {"is_stamped", T_BOOL, offsetof(State, is_stamped), 0, NULL},
    {"loader", T_UINT, offsetof(State, loader), 0, NULL},
    {"collate_began_ns", T_ULONGLONG, offsetof(State, collate_began_ns), 0, NULL},
    {"samples", T_LONGLONG, offsetof(State, samples), 0, NULL},
    {"samples_ns", T_LONGLONG, offsetof(State, samples_ns), 0, NULL},
    {"short_sample_ns", T_LONGLONG, offsetof(State, short_sample_ns), 0, NULL},
    {"to_pass", T_LONGLONG, offsetof(State, to_pass), 0, NULL},
    {"least_ns", T_LONGLONG, offsetof(State, least_ns), 0, NULL},
    {NULL},
};

/* A copy, or one in another process, has no state of ours. */
static PyObject *state_reduce(PyObject *me, PyObject *unused) {
    return Py_BuildValue("O()", (PyObject *)Py_TYPE(Py_None));
}

static PyMethodDef state_methods[] = {
    {"__reduce__", state_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject StateType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "trainprof.record._hot.State",
    .tp_basicsize = sizeof(State),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_members = state_members,
    .tp_methods = state_methods,
};

/* --- the module --- */

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_hot", "Twins in C of what runs in each training step.", -1, NULL,
};

/* Sets `is_monotonic`; returns -1 with an error. */
static int compare_clocks(void) {
    uint64_t before, after, between;
    if (read_clock(perf_counter_ns, &before) < 0)
        return -1;
    between = monotonic_ns();
    if (read_clock(perf_counter_ns, &after) < 0)
        return -1;
    is_monotonic = before <= between && between <= after;
    return 0;
}

/* Checksum of this file, so that an older build is not used. */
#ifndef SOURCE
#define SOURCE 0
#endif

PyMODINIT_FUNC PyInit__hot(void) {
    for (int i = 0; i < NAMES; i++)
        if ((names_of[i] = PyUnicode_InternFromString(texts[i])) == NULL)
            return NULL;
    const Record sample = {1, 2, 3, 4, 5, 6, 7};
    if (((const char *)&sample)[8] != 5) {
        PyErr_SetString(PyExc_ImportError, "records are little-endian");
        return NULL;
    }
    PyObject *time_module = PyImport_ImportModule("time");
    if (time_module == NULL)
        return NULL;
    perf_counter_ns = PyObject_GetAttrString(time_module, "perf_counter_ns");
    Py_DECREF(time_module);
    if (perf_counter_ns == NULL || compare_clocks() < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddObject(module, "SOURCE", PyLong_FromUnsignedLong(SOURCE)) < 0)
        return NULL;
    PyTypeObject *types[] = {&RecorderType, &WrapperType, &StateType, &StampedType,
                             &StampingType};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        const char *name = strrchr(types[i]->tp_name, '.') + 1;
        if (PyType_Ready(types[i]) < 0 ||
            PyModule_AddObjectRef(module, name, (PyObject *)types[i]) < 0) {
            Py_DECREF(module);
            return NULL;
        }
    }
    return module;
}
