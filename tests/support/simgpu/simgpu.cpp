// A simulated accelerator for tests: a PrivateUse1 device that works asynchronously on known time.
//
// Arithmetic runs at once on the host. Every operation is also booked on the virtual timeline of its
// stream: one of cost d starts at max(now, end of the one before) and ends d later. An event is a
// point on that line, and to synchronize is to sleep until it. So the host runs ahead of the device,
// `.item()` stalls, and what the device did is known exactly. There are no threads.

// Not all of torch's headers, which take thrice as long to compile.
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

using namespace c10;

namespace {

constexpr DeviceType TYPE = DeviceType::PrivateUse1;
constexpr int DEVICES = 2;

struct Work {
  int64_t start, end;
  int device;
  int64_t stream;
  std::string name;
};

std::mutex lock;
std::map<std::pair<int, int64_t>, int64_t> idle_from;  // by device and stream, ns
std::vector<Work> done;
int64_t operation_ns = 1'000'000;
int64_t copy_ns = 20'000;
int64_t copy_ns_per_mb = 0;
int64_t value_ns = 5'000;  // what `.item()` copies
int64_t emptying_ns = 0;   // the host's, in empty_cache
int64_t synchronizations = 0;
int64_t next_stream = 1;

thread_local int current_device = 0;
thread_local std::map<int, int64_t> current_stream;
thread_local int in_fallback = 0;

int64_t now() {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

void sleep_until(int64_t moment) {
  int64_t left = moment - now();
  if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
}

int index_of(Device device) { return device.index() < 0 ? current_device : device.index(); }

int64_t stream_of(int device) {
  auto found = current_stream.find(device);
  return found == current_stream.end() ? 0 : found->second;
}

void book(const std::string& name, int device, int64_t cost) {
  std::lock_guard<std::mutex> guard(lock);
  int64_t stream = stream_of(device);
  int64_t& idle = idle_from[{device, stream}];
  int64_t start = std::max(now(), idle);
  idle = start + cost;
  done.push_back({start, idle, device, stream, name});
}

int64_t idle_time(int device, int64_t stream) {
  std::lock_guard<std::mutex> guard(lock);
  return idle_from[{device, stream}];
}

int64_t idle_time_of_all_streams(int device) {
  std::lock_guard<std::mutex> guard(lock);
  int64_t latest = 0;
  for (auto& [place, idle] : idle_from)
    if (place.first == device) latest = std::max(latest, idle);
  return latest;
}

int64_t& point(void* event) { return *static_cast<int64_t*>(event); }

struct Guard final : impl::DeviceGuardImplInterface {
  DeviceType type() const override { return TYPE; }
  Device exchangeDevice(Device device) const override {
    Device before(TYPE, current_device);
    current_device = device.index() < 0 ? 0 : device.index();
    return before;
  }
  Device getDevice() const override { return Device(TYPE, current_device); }
  void setDevice(Device device) const override {
    current_device = device.index() < 0 ? 0 : device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    current_device = device.index() < 0 ? 0 : device.index();
  }
  Stream getStream(Device device) const override {
    int index = index_of(device);
    return Stream(Stream::UNSAFE, Device(TYPE, index), stream_of(index));
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::UNSAFE, Device(TYPE, index_of(device)), 0);
  }
  Stream getNewStream(Device device, int = 0) const override {
    std::lock_guard<std::mutex> guard(lock);
    return Stream(Stream::UNSAFE, Device(TYPE, index_of(device)), next_stream++);
  }
  Stream getStreamFromGlobalPool(Device device, bool = false) const override {
    return getNewStream(device);
  }
  Stream exchangeStream(Stream stream) const override {
    int index = stream.device_index();
    Stream before(Stream::UNSAFE, Device(TYPE, index), stream_of(index));
    current_stream[index] = stream.id();
    return before;
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<int64_t*>(event);
  }
  void record(void** event, const Stream& stream, const DeviceIndex, const EventFlag)
      const override {
    if (!*event) *event = new int64_t(0);
    point(*event) = std::max(now(), idle_time(stream.device_index(), stream.id()));
  }
  void block(void* event, const Stream& stream) const override {
    if (!event) return;
    std::lock_guard<std::mutex> guard(lock);
    int64_t& idle = idle_from[{stream.device_index(), stream.id()}];
    idle = std::max(idle, point(event));
  }
  bool queryEvent(void* event) const override { return !event || now() >= point(event); }
  void synchronizeEvent(void* event) const override {
    if (event) sleep_until(point(event));
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    TORCH_CHECK(queryEvent(first) && queryEvent(second), "simgpu: event not complete");
    return static_cast<double>(point(second) - point(first)) / 1e6;
  }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  bool queryStream(const Stream& stream) const override {
    return now() >= idle_time(stream.device_index(), stream.id());
  }
  void synchronizeStream(const Stream& stream) const override {
    sleep_until(idle_time(stream.device_index(), stream.id()));
  }
  void synchronizeDevice(const DeviceIndex index) const override {
    {
      std::lock_guard<std::mutex> guard(lock);
      synchronizations++;
    }
    sleep_until(idle_time_of_all_streams(index < 0 ? current_device : index));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Memory final : Allocator {
  DataPtr allocate(size_t size) override {
    void* place = nullptr;
    if (size) TORCH_CHECK(!posix_memalign(&place, 64, size));
    return {place, place, &free, Device(TYPE, current_device)};
  }
  DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* target, const void* source, size_t size) const override {
    memcpy(target, source, size);
  }
};
Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return DEVICES; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex device) const override { current_device = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current_device : exchangeDevice(device);
  }
  Allocator* getPinnedMemoryAllocator() const override { return GetAllocator(DeviceType::CPU); }
  bool isPinnedPtr(const void*) const override { return false; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::globalContext().defaultGenerator(Device(DeviceType::CPU));
  }
};

struct OnDevice {
  int before = current_device;
  explicit OnDevice(int device) { current_device = device < 0 ? current_device : device; }
  ~OnDevice() { current_device = before; }
};

at::Tensor on_host(const at::Tensor& tensor) {
  auto options = at::TensorOptions().dtype(tensor.scalar_type());
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

using Dtype = std::optional<at::ScalarType>;
using Where = std::optional<at::Device>;

at::Tensor empty(
    IntArrayRef sizes, Dtype dtype, std::optional<at::Layout>, Where device, std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  OnDevice guard(device ? device->index() : -1);
  return at::detail::empty_generic(
      sizes, &memory, DispatchKeySet(DispatchKey::PrivateUse1),
      dtype.value_or(at::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(
    IntArrayRef sizes, IntArrayRef strides, Dtype dtype, std::optional<at::Layout>, Where device,
    std::optional<bool>) {
  OnDevice guard(device ? device->index() : -1);
  return at::detail::empty_strided_generic(
      sizes, strides, &memory, DispatchKeySet(DispatchKey::PrivateUse1),
      dtype.value_or(at::get_default_dtype_as_scalartype()));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  bool is_from = source.device().type() == TYPE, is_to = target.device().type() == TYPE;
  int device = is_from ? source.device().index() : target.device().index();
  if (!in_fallback) {
    const char* name = is_from && is_to ? "copy d2d" : is_from ? "copy d2h" : "copy h2d";
    auto bytes = static_cast<int64_t>(target.nbytes());
    book(name, device, copy_ns + copy_ns_per_mb * bytes / 1'000'000);
    if (!non_blocking && !(is_from && is_to)) sleep_until(idle_time(device, stream_of(device)));
  }
  (is_to ? on_host(target) : target).copy_(is_from ? on_host(source) : source);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar value_of(const at::Tensor& tensor) {
  int device = tensor.device().index();
  book("item", device, value_ns);
  sleep_until(idle_time(device, stream_of(device)));
  return on_host(tensor).item();
}

at::Tensor& set_source(
    at::Tensor& result, at::Storage storage, int64_t offset, IntArrayRef sizes,
    IntArrayRef strides) {
  return at::native::set_storage_cpu_(result, storage, offset, sizes, strides);
}

const at::Tensor& resize(
    const at::Tensor& tensor, IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  int64_t count = 1;
  for (auto size : sizes) count *= size;
  auto needed = static_cast<size_t>((count + tensor.storage_offset()) * tensor.element_size());
  const auto& storage = tensor.storage();
  if (needed > storage.nbytes()) {
    OnDevice guard(tensor.device().index());
    auto place = memory.allocate(needed);
    if (storage.nbytes()) memcpy(place.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(place));
    storage.set_nbytes(needed);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void anything_else(const OperatorHandle& operation, torch::jit::Stack* stack) {
  int device = current_device;
  for (const auto& value : *stack) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == TYPE) {
      device = value.toTensor().device().index();
      break;
    }
  }
  OnDevice guard(device);
  struct Nested {
    Nested() { in_fallback++; }
    ~Nested() { in_fallback--; }
  };
  {
    Nested nested;
    at::native::cpu_fallback(operation, stack);
  }
  book(operation.operator_name().name, device, operation_ns);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", value_of);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_source);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&anything_else>());
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("set_costs_ns", [](int64_t operation, int64_t copy, int64_t per_mb, int64_t value) {
    operation_ns = operation;
    copy_ns = copy;
    copy_ns_per_mb = per_mb;
    value_ns = value;
  });
  m.def("set_emptying_ns", [](int64_t ns) { emptying_ns = ns; });
  // As torch.cuda.empty_cache, which waits for the device.
  m.def("empty_cache", [] {
    sleep_until(idle_time_of_all_streams(current_device));
    sleep_until(now() + emptying_ns);
  });
  m.def("done", [] {
    std::lock_guard<std::mutex> guard(lock);
    std::vector<std::tuple<int64_t, int64_t, int, int64_t, std::string>> told;
    for (auto& work : done)
      told.emplace_back(work.start, work.end, work.device, work.stream, work.name);
    return told;
  });
  m.def("has_worked", [] {
    std::lock_guard<std::mutex> guard(lock);
    return !done.empty();
  });
  m.def("synchronizations", [] {
    std::lock_guard<std::mutex> guard(lock);
    return synchronizations;
  });
  m.def("current_device", [] { return current_device; });
  m.attr("device_count") = DEVICES;
}
