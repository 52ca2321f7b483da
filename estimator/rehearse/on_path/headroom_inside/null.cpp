// NVIDIA's libraries for a machine without a GPU, so that PyTorch's CUDA build runs there.
//
// Memory is address space, counted against a card's. Kernels do nothing and every other call answers "done": no value is
// computed, yet PyTorch's own allocator, dispatch, autograd and streams run, request by request. What a call has to answer
// is here; build.py adds all other functions that PyTorch wants, which return 0. No header of CUDA's is needed: a machine
// without a GPU rarely has one, and few types are.
//
// The card is told by the environment: NULL_MEMORY (bytes that PyTorch can have), NULL_TOTAL (bytes that the card has),
// NULL_NAME, NULL_CAPABILITY (such as 80), NULL_MULTIPROCESSORS, NULL_DEVICES.
//
// Source: the behaviour that the CUDA runtime's and driver's manuals document (docs.nvidia.com/cuda), as far as
// torch 2.4 to 2.13 (c10/cuda, aten/src/ATen/cuda) and bitsandbytes 0.50 depend on it. CUDA_VERSION is build.py's.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int SUCCESS = 0, OUT_OF_MEMORY = 2;  // cudaError_t
constexpr int UNREGISTERED = 0, OF_THE_HOST = 1, OF_THE_DEVICE = 2;  // cudaMemoryType
constexpr int MOST_DEVICES = 64;
constexpr size_t GRANULE = 2 << 20;     // what the driver's mappings are multiples of
constexpr size_t READ = 1 << 20;        // larger copies to the device are weights, whose values nobody reads
constexpr size_t MOVED = 1 << 16;       // likewise copies inside the device
constexpr size_t SHARED_MEMORY = 49152, REGISTERS = 65536;

size_t number(const char* name, size_t otherwise) {
  const char* told = getenv(name);
  return told ? strtoull(told, nullptr, 10) : otherwise;
}
const int capability = number("NULL_CAPABILITY", 80);  // without a word, an A100: CUDA C++ Programming Guide, "Compute Capabilities"
const int multiprocessors = number("NULL_MULTIPROCESSORS", 108);
const int devices = number("NULL_DEVICES", 1);
const char* card_name = getenv("NULL_NAME") ? getenv("NULL_NAME") : "NVIDIA A100-SXM4-80GB";
size_t limit = number("NULL_MEMORY", size_t(1) << 40);

size_t total() { return number("NULL_TOTAL", limit); }
size_t shared_memory_opted_in() {  // CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", less 1 KiB
  switch (capability) {
    case 70: case 72: return 98304;
    case 75: return 65536;
    case 80: case 87: return 166912;
    case 86: case 89: return 101376;
    default: return capability < 70 ? SHARED_MEMORY : capability < 120 ? 232448 : 101376;
  }
}
int compiled_for() {  // of what PyTorch's wheels are compiled for (torch.cuda.get_arch_list), what this card would run
  int found = 50;
  for (int it : {60, 70, 75, 80, 86, 90, 100, 120})
    if (it <= capability) found = it;
  return found;
}

struct Area {
  size_t bytes;
  int device;
};
std::recursive_mutex guard;
size_t used[MOST_DEVICES], most[MOST_DEVICES];
std::map<char*, Area> areas;                   // addresses given out
std::map<char*, Area> pinned;                  // likewise of the host
std::map<unsigned long long, Area> pages;      // physical memory of the driver's interface
thread_local int last = SUCCESS, current = 0;

int failed(int error) { return last = error; }

bool take(size_t bytes) {
  if (used[current] + bytes > limit) return false;
  used[current] += bytes;
  if (used[current] > most[current]) most[current] = used[current];
  return true;
}

void* addresses(size_t bytes) {
  void* found = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : found;
}

const Area* area_of(const std::map<char*, Area>& given, const void* pointer) {
  std::lock_guard<std::recursive_mutex> held(guard);
  auto next = given.upper_bound((char*)pointer);
  if (next == given.begin()) return nullptr;
  --next;
  return (char*)pointer < next->first + next->second.bytes ? &next->second : nullptr;
}

void* handle() {  // each is another: PyTorch keeps a workspace for every handle of cuBLAS and stream
  static size_t count = 0;
  std::lock_guard<std::recursive_mutex> held(guard);
  return (void*)(++count << 8);
}

int answer = -1;  // what the next number read from the device is; -1: what lies there

int copied(void* to, const void* from, size_t bytes) {
  const bool to_device = area_of(areas, to), from_device = area_of(areas, from);
  if (answer >= 0 && from_device && !to_device && bytes == sizeof answer) {
    memcpy(to, &answer, bytes);
    answer = -1;
    return SUCCESS;
  }
  if (!to_device || bytes <= (from_device ? MOVED : READ)) memmove(to, from, bytes);
  return SUCCESS;
}

int given_back(std::map<char*, Area>& given, void* pointer, bool counted) {
  std::lock_guard<std::recursive_mutex> held(guard);
  auto area = given.find((char*)pointer);
  if (area == given.end()) return SUCCESS;
  if (counted) used[area->second.device] -= area->second.bytes;
  munmap(area->first, area->second.bytes ? area->second.bytes : 1);
  given.erase(area);
  return SUCCESS;
}

int handed_out(std::map<char*, Area>& given, void** pointer, size_t bytes) {
  *pointer = addresses(bytes);
  if (!*pointer) return failed(OUT_OF_MEMORY);
  given[(char*)*pointer] = {bytes, current};
  return SUCCESS;
}

}  // namespace

// --- the card's memory, asked and set from Python ---------------------------------------------------------------

API void null_limit(size_t bytes) { limit = bytes; }
API size_t null_most() { return most[current]; }
API size_t null_take_most(int device) {  // the most since it was last asked
  std::lock_guard<std::recursive_mutex> held(guard);
  const size_t found = most[device];
  most[device] = used[device];
  return found;
}
API void null_answer(int value) { answer = value; }

// --- the runtime: memory ----------------------------------------------------------------------------------------

API int cudaMalloc(void** pointer, size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(guard);
  *pointer = nullptr;
  if (!take(bytes)) return failed(OUT_OF_MEMORY);
  const int found = handed_out(areas, pointer, bytes);
  if (found != SUCCESS) used[current] -= bytes;
  return found;
}
API int cudaFree(void* pointer) { return given_back(areas, pointer, true); }
API int cudaMallocAsync(void** pointer, size_t bytes, void*) { return cudaMalloc(pointer, bytes); }
API int cudaFreeAsync(void* pointer, void*) { return cudaFree(pointer); }
API int cudaMallocManaged(void** pointer, size_t bytes, unsigned) {  // pages of the host until they are touched
  *pointer = addresses(bytes);
  return *pointer ? SUCCESS : failed(OUT_OF_MEMORY);
}
API int cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  std::lock_guard<std::recursive_mutex> held(guard);
  return handed_out(pinned, pointer, bytes);
}
API int cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
API int cudaFreeHost(void* pointer) { return given_back(pinned, pointer, false); }
API int cudaMemGetInfo(size_t* free_bytes, size_t* all) { *all = total(); *free_bytes = limit - used[current]; return SUCCESS; }
API int cudaMemcpy(void* to, const void* from, size_t bytes, int) { return copied(to, from, bytes); }
API int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) { return copied(to, from, bytes); }
API int cudaMemset(void* to, int value, size_t bytes) { if (bytes <= MOVED) memset(to, value, bytes); return SUCCESS; }
API int cudaMemsetAsync(void* to, int value, size_t bytes, void*) { return cudaMemset(to, value, bytes); }
struct PointerAttributes {  // the beginning of cudaPointerAttributes, which CUDA 12 and 13 share
  int type, device;
  void *device_pointer, *host_pointer;
};
API int cudaPointerGetAttributes(PointerAttributes* found, const void* pointer) {
  const Area *here = area_of(areas, pointer), *of_the_host = here ? nullptr : area_of(pinned, pointer);
  found->type = here ? OF_THE_DEVICE : of_the_host ? OF_THE_HOST : UNREGISTERED;
  found->device = here ? here->device : -1;
  found->device_pointer = here ? (void*)pointer : nullptr;
  found->host_pointer = of_the_host ? (void*)pointer : nullptr;
  return SUCCESS;
}
API int cudaGetSymbolAddress(void** pointer, const void* symbol) { *pointer = (void*)symbol; return SUCCESS; }
API int cudaDeviceGetDefaultMemPool(void** pool, int) { *pool = handle(); return SUCCESS; }

// --- the driver: virtual memory, for expandable segments --------------------------------------------------------

API int cuMemCreate(unsigned long long* made, size_t bytes, const void*, unsigned long long) {
  std::lock_guard<std::recursive_mutex> held(guard);
  if (!take(bytes)) return OUT_OF_MEMORY;
  *made = (unsigned long long)handle();
  pages[*made] = {bytes, current};
  return 0;
}
API int cuMemRelease(unsigned long long made) {
  std::lock_guard<std::recursive_mutex> held(guard);
  used[pages[made].device] -= pages[made].bytes;
  pages.erase(made);
  return 0;
}
API int cuMemAddressReserve(void** pointer, size_t bytes, size_t, void*, unsigned long long) {
  std::lock_guard<std::recursive_mutex> held(guard);
  return handed_out(areas, pointer, bytes);
}
API int cuMemAddressFree(void* pointer, size_t) { return given_back(areas, pointer, false); }
API int cuMemGetAllocationGranularity(size_t* found, const void*, int) { *found = GRANULE; return 0; }
API int cuGetErrorString(int error, const char** text) { *text = error == OUT_OF_MEMORY ? "out of memory" : ""; return 0; }
static int done(...) { return 0; }
static void* entry(const char* name) {
  static const std::map<std::string, void*> answered = {
      {"cuMemCreate", (void*)cuMemCreate}, {"cuMemRelease", (void*)cuMemRelease}, {"cuMemAddressReserve", (void*)cuMemAddressReserve},
      {"cuMemAddressFree", (void*)cuMemAddressFree}, {"cuMemGetAllocationGranularity", (void*)cuMemGetAllocationGranularity},
      {"cuGetErrorString", (void*)cuGetErrorString}};
  auto it = answered.find(name);
  return it == answered.end() ? (void*)done : it->second;
}
API int cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long, int* result) {
  *found = entry(name);
  if (result) *result = 0;  // cudaDriverEntryPointSuccess
  return SUCCESS;
}
API int cudaGetDriverEntryPoint(const char* name, void** found, unsigned long long, int* result) {
  return cudaGetDriverEntryPointByVersion(name, found, 0, 0, result);
}
#define DRIVER_DONE(name) API int name(...) { return 0; }  // what c10/cuda/driver_api.h looks for by name
DRIVER_DONE(cuMemMap) DRIVER_DONE(cuMemUnmap) DRIVER_DONE(cuMemSetAccess) DRIVER_DONE(cuMemRetainAllocationHandle)
DRIVER_DONE(cuMemExportToShareableHandle) DRIVER_DONE(cuMemImportFromShareableHandle) DRIVER_DONE(cuMemsetD32Async)
DRIVER_DONE(cuMemGetAllocationPropertiesFromHandle) DRIVER_DONE(cuMemGetAddressRange) DRIVER_DONE(cuStreamWriteValue32)
DRIVER_DONE(cuMulticastAddDevice) DRIVER_DONE(cuMulticastBindMem) DRIVER_DONE(cuMulticastCreate) DRIVER_DONE(cuMulticastUnbind)
DRIVER_DONE(cuInit) DRIVER_DONE(cuDeviceGet) DRIVER_DONE(cuCtxSetCurrent) DRIVER_DONE(cuCtxPushCurrent) DRIVER_DONE(cuCtxPopCurrent)
API int cuDeviceGetCount(int* count) { *count = devices; return 0; }
API int cuDriverGetVersion(int* version) { *version = CUDA_VERSION; return 0; }
API int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) { *flags = 0; *is_active = 1; return 0; }
API int cuCtxGetCurrent(void** context) { static int made; *context = &made; return 0; }

// --- the runtime: the card --------------------------------------------------------------------------------------

API int cudaGetDeviceCount(int* count) { *count = devices; return SUCCESS; }
API int cudaGetDevice(int* device) { *device = current; return SUCCESS; }
API int cudaSetDevice(int device) {
  if (device >= devices) return failed(101);  // cudaErrorInvalidDevice
  if (device >= 0) current = device;          // autograd's threads ask for -1, none
  return SUCCESS;
}
API int cudaDriverGetVersion(int* version) { *version = CUDA_VERSION; return SUCCESS; }
API int cudaRuntimeGetVersion(int* version) { *version = CUDA_VERSION; return SUCCESS; }

// cudaDeviceProp, of which the beginning is the same in both versions: where the rest lies, in bytes.
// Source: offsetof in nvidia-cuda-runtime 13.0.96 and nvidia-cuda-runtime-cu12 12.4.127, driver_types.h.
constexpr bool IS_12 = CUDA_VERSION < 13000;
#define AT(in_12, in_13) (IS_12 ? in_12 : in_13)
API int cudaGetDeviceProperties(char* card, int) {
  memset(card, 0, AT(1032, 1008));
  const auto whole = [card](size_t at, int value) { memcpy(card + at, &value, sizeof value); };
  const auto size = [card](size_t at, size_t value) { memcpy(card + at, &value, sizeof value); };
  snprintf(card, 256, "%s", card_name);
  size(288, total());               // totalGlobalMem
  size(296, SHARED_MEMORY);         // sharedMemPerBlock
  whole(304, REGISTERS);            // regsPerBlock
  whole(308, 32);                   // warpSize
  size(312, 2147483647);            // memPitch
  whole(320, 1024);                 // maxThreadsPerBlock
  whole(324, 1024); whole(328, 1024); whole(332, 64);            // maxThreadsDim
  whole(336, 2147483647); whole(340, 65535); whole(344, 65535);  // maxGridSize
  size(352, 65536);                 // totalConstMem
  whole(360, capability / 10); whole(364, capability % 10);      // major, minor
  size(368, 512);                   // textureAlignment
  whole(AT(388, 384), multiprocessors);
  whole(AT(400, 392), 1);           // canMapHostMemory
  whole(AT(576, 560), 1);           // concurrentKernels
  whole(AT(604, 588), 1);           // unifiedAddressing
  whole(AT(616, 596), 40 << 20);    // l2CacheSize
  whole(AT(624, 604), 2048);        // maxThreadsPerMultiProcessor
  whole(AT(628, 608), 1);           // streamPrioritiesSupported
  size(AT(640, 624), shared_memory_opted_in() + 1024);           // sharedMemPerMultiprocessor
  whole(AT(648, 632), REGISTERS);   // regsPerMultiprocessor
  whole(AT(652, 636), 1);           // managedMemory
  whole(AT(676, 656), 1);           // concurrentManagedAccess
  whole(AT(688, 668), 1);           // cooperativeLaunch
  size(AT(696, 672), shared_memory_opted_in());                  // sharedMemPerBlockOptin
  whole(AT(712, 688), 32);          // maxBlocksPerMultiProcessor
  size(AT(720, 696), 1024);         // reservedSharedMemPerBlock
  return SUCCESS;
}
API int cudaGetDeviceProperties_v2(char* card, int device) { return cudaGetDeviceProperties(card, device); }
API int cudaDeviceGetAttribute(int* value, int attribute, int) {  // cudaDeviceAttr
  switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;           // MaxThreadsPerBlock, MaxBlockDimX, Y
    case 4: *value = 64; break;                             // MaxBlockDimZ
    case 5: *value = 2147483647; break;                     // MaxGridDimX
    case 6: case 7: *value = 65535; break;                  // MaxGridDimY, Z
    case 8: *value = SHARED_MEMORY; break;                  // MaxSharedMemoryPerBlock
    case 10: *value = 32; break;                            // WarpSize
    case 12: case 82: *value = REGISTERS; break;            // MaxRegistersPerBlock, PerMultiprocessor
    case 16: *value = multiprocessors; break;
    case 38: *value = 40 << 20; break;                      // L2CacheSize
    case 39: *value = 2048; break;                          // MaxThreadsPerMultiProcessor
    case 41: case 89: case 95: case 115: *value = 1; break; // UnifiedAddressing, ConcurrentManagedAccess, CooperativeLaunch, MemoryPools
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    case 81: *value = shared_memory_opted_in() + 1024; break;
    case 97: *value = shared_memory_opted_in(); break;
    case 106: *value = 32; break;                           // MaxBlocksPerMultiprocessor
    case 111: *value = 1024; break;                         // ReservedSharedMemoryPerBlock
    default: *value = 0;
  }
  return SUCCESS;
}
API int cuDeviceGetAttribute(int* value, int attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }
API int cudaDeviceCanAccessPeer(int* value, int, int) { *value = 1; return SUCCESS; }
API int cudaDeviceGetPCIBusId(char* text, int bytes, int device) { snprintf(text, bytes, "0000:%02x:00.0", device); return SUCCESS; }
API int cudaGetLastError() { const int error = last; last = SUCCESS; return error; }
API int cudaPeekAtLastError() { return last; }
API const char* cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : error ? "invalid device ordinal" : "no error"; }
API const char* cudaGetErrorName(int error) { return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : error ? "cudaErrorInvalidDevice" : "cudaSuccess"; }

// --- the runtime: streams, events, kernels ----------------------------------------------------------------------

API int cudaStreamCreate(void** made) { *made = handle(); return SUCCESS; }
API int cudaStreamCreateWithFlags(void** made, unsigned) { return cudaStreamCreate(made); }
API int cudaStreamCreateWithPriority(void** made, unsigned, int) { return cudaStreamCreate(made); }
API int cudaStreamGetPriority(void*, int* priority) { *priority = 0; return SUCCESS; }
API int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; return SUCCESS; }
// A graph is captured by calls that run as ever: what is allocated meanwhile lies in the graph's own pool.
constexpr int CAPTURING = 1;  // cudaStreamCaptureStatusActive
std::map<void*, unsigned long long> captures;  // by stream
API int cudaStreamBeginCapture(void* stream, int) {
  std::lock_guard<std::recursive_mutex> held(guard);
  captures[stream] = (unsigned long long)handle();
  return SUCCESS;
}
API int cudaStreamEndCapture(void* stream, void** graph) {
  std::lock_guard<std::recursive_mutex> held(guard);
  captures.erase(stream);
  *graph = handle();
  return SUCCESS;
}
API int cudaStreamIsCapturing(void* stream, int* status) {
  std::lock_guard<std::recursive_mutex> held(guard);
  *status = captures.count(stream) ? CAPTURING : 0;
  return SUCCESS;
}
API int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph, ...) {
  std::lock_guard<std::recursive_mutex> held(guard);
  cudaStreamIsCapturing(stream, status);
  if (*status && id) *id = captures[stream];
  if (*status && graph) *graph = (void*)captures[stream];
  return SUCCESS;
}
API int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph, ...) { return cudaStreamGetCaptureInfo(stream, status, id, graph); }
API int cudaStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph, ...) { return cudaStreamGetCaptureInfo(stream, status, id, graph); }
API int cudaGraphInstantiate(void** made, ...) { *made = handle(); return SUCCESS; }
API int cudaGraphInstantiateWithFlags(void** made, ...) { return cudaGraphInstantiate(made); }
API int cudaGraphGetNodes(void*, void**, size_t* nodes) { *nodes = 1; return SUCCESS; }
API int cudaEventCreate(void** made) { *made = handle(); return SUCCESS; }
API int cudaEventCreateWithFlags(void** made, unsigned) { return cudaEventCreate(made); }
API int cudaEventElapsedTime(float* milliseconds, void*, void*) { *milliseconds = 1; return SUCCESS; }
API int cudaLaunchHostFunc(void*, void (*call)(void*), void* data) { call(data); return SUCCESS; }
API int cudaStreamAddCallback(void* stream, void (*call)(void*, int, void*), void* data, unsigned) { call(stream, SUCCESS, data); return SUCCESS; }
struct FunctionAttributes {  // the beginning of cudaFuncAttributes, which CUDA 12 and 13 share
  size_t shared, constant, local;
  int most_threads, registers, ptx, binary, cache_mode, most_dynamic_shared, carve_out;
};
API int cudaFuncGetAttributes(FunctionAttributes* found, const void*) {
  memset(found, 0, sizeof *found);
  found->binary = found->ptx = compiled_for();
  found->most_threads = 1024;
  found->registers = 32;
  found->most_dynamic_shared = shared_memory_opted_in();
  return SUCCESS;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) { *blocks = 2; return SUCCESS; }
API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) { *blocks = 2; return SUCCESS; }
API void** __cudaRegisterFatBinary(void*) { static void* image; return &image; }
struct Extent { unsigned x, y, z; };
API unsigned __cudaPushCallConfiguration(Extent, Extent, size_t, void*) { return 0; }
API int __cudaPopCallConfiguration(Extent* grid, Extent* block, size_t* shared, void* stream) {
  *grid = *block = Extent{1, 1, 1};
  *shared = 0;
  *(void**)stream = nullptr;
  return SUCCESS;
}
API int __cudaGetKernel(void** kernel, const void* function) { *kernel = (void*)function; return SUCCESS; }

// --- all other libraries ----------------------------------------------------------------------------------------

#define MAKES(name) API int name(void** made, ...) { *made = calloc(1, 4096); return 0; }  // an object of a library's own
#define SAYS(name) API const char* name(...) { return ""; }
MAKES(cublasCreate_v2) MAKES(cublasLtCreate) MAKES(cusparseCreate) MAKES(cusolverDnCreate) MAKES(nvrtcCreateProgram)
MAKES(cudnnCreate) MAKES(ncclCommInitRank) MAKES(ncclCommInitRankConfig)
SAYS(cudnnGetErrorString) SAYS(cusparseGetErrorString) SAYS(ncclGetErrorString) SAYS(ncclGetLastError) SAYS(nvrtcGetErrorString)
API size_t cublasLtGetVersion() { return CUDA_VERSION * 10 + 3; }
API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* count) {
  memset(results, 0, 80);  // one algorithm, without a workspace of its own
  *count = 1;
  return 0;
}
API size_t cudnnGetVersion() { return 92000; }
API size_t cudnnGetCudartVersion() { return CUDA_VERSION; }
API int ncclGetVersion(int* version) { *version = 22907; return 0; }
API int ncclCommGetAsyncError(void*, int* error) { *error = 0; return 0; }
API int ncclCommSplit(void*, int, int, void** made, void*) { *made = calloc(1, 4096); return 0; }
API int nvrtcVersion(int* major, int* minor) { *major = CUDA_VERSION / 1000; *minor = 0; return 0; }

// --- NVML: what torch, vLLM and nvidia-ml-py ask it. What is not here their bindings do not find, and say so ----------

constexpr int NOT_SUPPORTED = 3;  // NVML_ERROR_NOT_SUPPORTED
API int nvmlInit() { return 0; }
API int nvmlInit_v2() { return 0; }
API int nvmlInitWithFlags(unsigned) { return 0; }
API int nvmlShutdown() { return 0; }
API const char* nvmlErrorString(int error) { return error == NOT_SUPPORTED ? "Not Supported" : error ? "Unknown Error" : "Success"; }
API int nvmlDeviceGetCount_v2(unsigned* count) { *count = devices; return 0; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned device, void** made) { *made = (void*)size_t(device + 1); return 0; }
API int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** made) { return nvmlDeviceGetHandleByIndex_v2(0, made); }
API int nvmlDeviceGetHandleByUUID(const char*, void** made) { return nvmlDeviceGetHandleByIndex_v2(0, made); }
API int nvmlDeviceGetIndex(void* device, unsigned* index) { *index = unsigned(size_t(device)) - 1; return 0; }
API int nvmlDeviceGetName(void*, char* text, unsigned bytes) { snprintf(text, bytes, "%s", card_name); return 0; }
API int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) { snprintf(text, bytes, "GPU-00000000-0000-0000-0000-%012zu", size_t(device)); return 0; }
API int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) { *major = capability / 10; *minor = capability % 10; return 0; }
struct Memory { unsigned long long total, free, used; };
API int nvmlDeviceGetMemoryInfo(void* device, Memory* found) {
  const size_t taken = total() - limit + used[size_t(device) - 1];
  *found = {total(), total() - taken, taken};
  return 0;
}
API int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) { *status = 0; return 0; }  // NVML_P2P_STATUS_OK
API int nvmlSystemGetDriverVersion(char* text, unsigned bytes) { snprintf(text, bytes, "580.65.06"); return 0; }  // CUDA 13.0's own
API int nvmlSystemGetCudaDriverVersion_v2(int* version) { *version = CUDA_VERSION; return 0; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(...) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(...) { return NOT_SUPPORTED; }
API int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) { *count = 0; return 0; }
API int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 0; }

// cuSOLVER's workspaces: how large they are is its own knowledge, and none is asked for. The last arguments say where the
// size is wanted: docs.nvidia.com/cuda/cusolver.
using Any = void*;
#define WORKSPACE(name, ...) API int cusolverDn##name##_bufferSize(__VA_ARGS__, int* size) { *size = 0; return 0; }
#define WORKSPACES(name, ...) WORKSPACE(S##name, __VA_ARGS__) WORKSPACE(D##name, __VA_ARGS__) WORKSPACE(C##name, __VA_ARGS__) WORKSPACE(Z##name, __VA_ARGS__)
#define REAL(name, ...) WORKSPACE(S##name, __VA_ARGS__) WORKSPACE(D##name, __VA_ARGS__)
#define COMPLEX(name, ...) WORKSPACE(C##name, __VA_ARGS__) WORKSPACE(Z##name, __VA_ARGS__)
WORKSPACES(geqrf, Any, int, int, Any, int) WORKSPACES(getrf, Any, int, int, Any, int)
WORKSPACES(potrf, Any, int, int, Any, int) WORKSPACES(sytrf, Any, int, Any, int) WORKSPACES(gesvd, Any, int, int)
REAL(orgqr, Any, int, int, int, Any, int, Any) COMPLEX(ungqr, Any, int, int, int, Any, int, Any)
REAL(ormqr, Any, int, int, int, int, int, Any, int, Any, Any, int) COMPLEX(unmqr, Any, int, int, int, int, int, Any, int, Any, Any, int)
REAL(syevd, Any, int, int, int, Any, int, Any) COMPLEX(heevd, Any, int, int, int, Any, int, Any)
#undef WORKSPACE
#define WORKSPACE(name, ...) API int cusolverDn##name##_bufferSize(__VA_ARGS__, int* size, ...) { *size = 0; return 0; }
WORKSPACES(gesvdj, Any, int, int, int, int, Any, int, Any, Any, int, Any, int)
WORKSPACES(gesvdjBatched, Any, int, int, int, Any, int, Any, Any, int, Any, int)
WORKSPACES(gesvdaStridedBatched, Any, int, int, int, int, Any, int, long long, Any, long long, Any, int, long long, Any, int, long long)
REAL(syevjBatched, Any, int, int, int, Any, int, Any) COMPLEX(heevjBatched, Any, int, int, int, Any, int, Any)
#define BOTH_WORKSPACES(name, ...) API int cusolverDn##name##_bufferSize(__VA_ARGS__, size_t* device, size_t* host, ...) { *device = *host = 0; return 0; }
BOTH_WORKSPACES(Xgeqrf, Any, Any, long, long, int, Any, long, int, Any, int)
BOTH_WORKSPACES(Xpotrf, Any, Any, int, long, int, Any, long, int)
BOTH_WORKSPACES(Xsyevd, Any, Any, int, int, long, int, Any, long, int, Any, int)
BOTH_WORKSPACES(XsyevBatched, Any, Any, int, int, long, int, Any, long, int, Any, int)
BOTH_WORKSPACES(Xsytrs, Any, int, long, long, int, Any, long, Any, int, Any, long)
BOTH_WORKSPACES(Xgeev, Any, Any, int, int, long, int, Any, long, int, Any, int, Any, long, int, Any, long, int)
