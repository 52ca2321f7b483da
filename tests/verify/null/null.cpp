// NVIDIA's libraries for a machine without a GPU, so that PyTorch's CUDA build runs there.
//
// Memory is address space, counted against a card's. Kernels do nothing and every other call answers "done": no value is
// computed, yet PyTorch's own allocator, dispatch, autograd and streams run, request by request. What a call has to answer
// is here; build.py adds all other functions that PyTorch wants, which return 0.
//
// Source: the behaviour that the CUDA runtime's and driver's manuals document (docs.nvidia.com/cuda), as far as
// torch 2.13 (c10/cuda, aten/src/ATen/cuda) and bitsandbytes 0.50 depend on it.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int CAPABILITY = 80;          // an A100: NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities"
constexpr int MULTIPROCESSORS = 108;
constexpr size_t SHARED_MEMORY = 166912;  // a block's most, opted in
constexpr size_t GRANULE = 2 << 20;     // what the driver's mappings are multiples of
constexpr size_t READ = 1 << 20;        // larger copies to the device are weights, whose values nobody reads
constexpr size_t MOVED = 1 << 16;       // likewise copies inside the device

std::recursive_mutex guard;
size_t limit = size_t(1) << 40, used = 0, most = 0;
std::map<char*, size_t> areas;                   // addresses given out, with their bytes
std::map<char*, size_t> pinned;                  // likewise of the host
std::map<unsigned long long, size_t> pages;      // physical memory of the driver's interface
thread_local cudaError_t last = cudaSuccess;

cudaError_t failed(cudaError_t error) { return last = error; }

bool take(size_t bytes) {
  if (used + bytes > limit) return false;
  used += bytes;
  if (used > most) most = used;
  return true;
}

void* addresses(size_t bytes) {
  void* found = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : found;
}

bool lies_in(const std::map<char*, size_t>& given, const void* pointer) {
  std::lock_guard<std::recursive_mutex> held(guard);
  auto next = given.upper_bound((char*)pointer);
  if (next == given.begin()) return false;
  --next;
  return (char*)pointer < next->first + next->second;
}

bool on_device(const void* pointer) { return lies_in(areas, pointer); }

void* handle() {  // each is another: PyTorch keeps a workspace for every handle of cuBLAS and stream
  static size_t count = 0;
  std::lock_guard<std::recursive_mutex> held(guard);
  return (void*)(++count << 8);
}

int answer = -1;  // what the next number read from the device is; -1: what lies there

cudaError_t copied(void* to, const void* from, size_t bytes) {
  const bool to_device = on_device(to), from_device = on_device(from);
  if (answer >= 0 && from_device && !to_device && bytes == sizeof answer) {
    memcpy(to, &answer, bytes);
    answer = -1;
    return cudaSuccess;
  }
  if (!to_device || bytes <= (from_device ? MOVED : READ)) memmove(to, from, bytes);
  return cudaSuccess;
}

}  // namespace

// --- the card's memory, asked and set from Python ---------------------------------------------------------------

API void null_limit(size_t bytes) { limit = bytes; }
API size_t null_most() { return most; }
API void null_answer(int value) { answer = value; }

// --- the runtime: memory ----------------------------------------------------------------------------------------

API cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(guard);
  *pointer = nullptr;
  if (!take(bytes)) return failed(cudaErrorMemoryAllocation);
  *pointer = addresses(bytes);
  if (!*pointer) return failed(cudaErrorMemoryAllocation);
  areas[(char*)*pointer] = bytes;
  return cudaSuccess;
}
API cudaError_t cudaFree(void* pointer) {
  std::lock_guard<std::recursive_mutex> held(guard);
  auto area = areas.find((char*)pointer);
  if (area == areas.end()) return cudaSuccess;
  used -= area->second;
  munmap(area->first, area->second);
  areas.erase(area);
  return cudaSuccess;
}
API cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {  // pages of the host until they are touched
  std::lock_guard<std::recursive_mutex> held(guard);
  *pointer = addresses(bytes);
  return *pointer ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
API cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  std::lock_guard<std::recursive_mutex> held(guard);
  *pointer = addresses(bytes);
  if (!*pointer) return failed(cudaErrorMemoryAllocation);
  pinned[(char*)*pointer] = bytes;
  return cudaSuccess;
}
API cudaError_t cudaFreeHost(void* pointer) {
  std::lock_guard<std::recursive_mutex> held(guard);
  auto area = pinned.find((char*)pointer);
  if (area == pinned.end()) return cudaSuccess;
  munmap(area->first, area->second);
  pinned.erase(area);
  return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) { *total = limit; *free_bytes = limit - used; return cudaSuccess; }
API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { return copied(to, from, bytes); }
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) { return copied(to, from, bytes); }
API cudaError_t cudaMemset(void* to, int value, size_t bytes) { if (bytes <= MOVED) memset(to, value, bytes); return cudaSuccess; }
API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) { return cudaMemset(to, value, bytes); }
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
  memset(found, 0, sizeof *found);
  const bool here = on_device(pointer);
  found->type = here ? cudaMemoryTypeDevice : lies_in(pinned, pointer) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  found->device = here ? 0 : -1;
  found->devicePointer = here ? (void*)pointer : nullptr;
  return cudaSuccess;
}
API cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) { *pointer = (void*)symbol; return cudaSuccess; }
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { *pool = (cudaMemPool_t)handle(); return cudaSuccess; }

// --- the driver: virtual memory, for expandable segments --------------------------------------------------------

static int mem_create(unsigned long long* made, size_t bytes, const void*, unsigned long long) {
  std::lock_guard<std::recursive_mutex> held(guard);
  if (!take(bytes)) return cudaErrorMemoryAllocation;
  *made = (unsigned long long)handle();
  pages[*made] = bytes;
  return 0;
}
static int mem_release(unsigned long long made) {
  std::lock_guard<std::recursive_mutex> held(guard);
  used -= pages[made];
  pages.erase(made);
  return 0;
}
static int mem_reserve(void** pointer, size_t bytes, size_t, void*, unsigned long long) {
  std::lock_guard<std::recursive_mutex> held(guard);
  *pointer = addresses(bytes);
  if (!*pointer) return cudaErrorMemoryAllocation;
  areas[(char*)*pointer] = bytes;
  return 0;
}
static int mem_free(void* pointer, size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(guard);
  munmap(pointer, bytes);
  areas.erase((char*)pointer);
  return 0;
}
static int mem_granularity(size_t* found, const void*, int) { *found = GRANULE; return 0; }
static int error_string(int, const char** text) { *text = "out of memory"; return 0; }
static int done(...) { return 0; }
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string, void*> answered = {
      {"cuMemCreate", (void*)mem_create}, {"cuMemRelease", (void*)mem_release}, {"cuMemAddressReserve", (void*)mem_reserve},
      {"cuMemAddressFree", (void*)mem_free}, {"cuMemGetAllocationGranularity", (void*)mem_granularity}, {"cuGetErrorString", (void*)error_string}};
  auto it = answered.find(name);
  *found = it == answered.end() ? (void*)done : it->second;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
API int cuDeviceGetCount(int* count) { *count = 1; return 0; }
API int cuDriverGetVersion(int* version) { *version = CUDART_VERSION; return 0; }
API int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) { *flags = 0; *is_active = 1; return 0; }
API int cuCtxGetCurrent(void** context) { static int made; *context = &made; return 0; }
API int cuGetErrorString(int, const char** text) { *text = ""; return 0; }

// --- the runtime: the card --------------------------------------------------------------------------------------

API cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
API cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
API cudaError_t cudaDriverGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* card, int) {
  memset(card, 0, sizeof *card);
  snprintf(card->name, sizeof card->name, "NVIDIA A100-SXM4-80GB");
  card->totalGlobalMem = limit;
  card->major = CAPABILITY / 10;
  card->minor = CAPABILITY % 10;
  card->multiProcessorCount = MULTIPROCESSORS;
  card->warpSize = 32;
  card->regsPerBlock = card->regsPerMultiprocessor = 65536;
  card->maxThreadsPerBlock = 1024;
  card->maxThreadsPerMultiProcessor = 2048;
  card->maxBlocksPerMultiProcessor = 32;
  card->maxThreadsDim[0] = card->maxThreadsDim[1] = 1024;
  card->maxThreadsDim[2] = 64;
  card->maxGridSize[0] = 2147483647;
  card->maxGridSize[1] = card->maxGridSize[2] = 65535;
  card->sharedMemPerBlock = 49152;
  card->sharedMemPerBlockOptin = SHARED_MEMORY;
  card->sharedMemPerMultiprocessor = SHARED_MEMORY + 1024;
  card->reservedSharedMemPerBlock = 1024;
  card->totalConstMem = 65536;
  card->memPitch = 2147483647;
  card->textureAlignment = 512;
  card->l2CacheSize = 40 << 20;
  card->unifiedAddressing = card->concurrentKernels = card->cooperativeLaunch = card->canMapHostMemory = 1;
  card->managedMemory = card->concurrentManagedAccess = card->streamPrioritiesSupported = 1;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  cudaDeviceProp card;
  cudaGetDeviceProperties(&card, 0);
  switch ((int)attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = card.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimZ: *value = card.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = card.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = card.maxGridSize[1]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = card.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = card.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = card.sharedMemPerMultiprocessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = card.reservedSharedMemPerBlock; break;
    case cudaDevAttrWarpSize: *value = card.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = card.regsPerBlock; break;
    case cudaDevAttrMultiProcessorCount: *value = card.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = card.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = card.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = card.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = card.minor; break;
    case cudaDevAttrL2CacheSize: *value = card.l2CacheSize; break;
    case cudaDevAttrUnifiedAddressing: case cudaDevAttrCooperativeLaunch: case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* value, int, int) { *value = 1; return cudaSuccess; }
API cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int) { snprintf(text, bytes, "0000:00:00.0"); return cudaSuccess; }
API cudaError_t cudaGetLastError() { const cudaError_t error = last; last = cudaSuccess; return error; }
API cudaError_t cudaPeekAtLastError() { return last; }
API const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "no error"; }
API const char* cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaSuccess"; }

// --- the runtime: streams, events, kernels ----------------------------------------------------------------------

API cudaError_t cudaStreamCreate(cudaStream_t* made) { *made = (cudaStream_t)handle(); return cudaSuccess; }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned) { return cudaStreamCreate(made); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int) { return cudaStreamCreate(made); }
API cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { *priority = 0; return cudaSuccess; }
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* made) { *made = (cudaEvent_t)handle(); return cudaSuccess; }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) { return cudaEventCreate(made); }
API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { *milliseconds = 1; return cudaSuccess; }
API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void* data) { call(data); return cudaSuccess; }
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data, unsigned) { call(stream, cudaSuccess, data); return cudaSuccess; }
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  memset(found, 0, sizeof *found);
  found->binaryVersion = found->ptxVersion = CAPABILITY;
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 32;
  found->maxDynamicSharedSizeBytes = SHARED_MEMORY;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) { *blocks = 2; return cudaSuccess; }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) { *blocks = 2; return cudaSuccess; }
API void** __cudaRegisterFatBinary(void*) { static void* image; return &image; }
API unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = *block = dim3{1, 1, 1};
  *shared = 0;
  *(void**)stream = nullptr;
  return cudaSuccess;
}
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) { *kernel = (cudaKernel_t)function; return cudaSuccess; }

// --- all other libraries ----------------------------------------------------------------------------------------

#define MAKES(name) API int name(void** made, ...) { *made = calloc(1, 4096); return 0; }  // an object of a library's own
#define SAYS(name) API const char* name(...) { return ""; }
MAKES(cublasCreate_v2) MAKES(cublasLtCreate) MAKES(cusparseCreate) MAKES(cusolverDnCreate) MAKES(nvrtcCreateProgram)
MAKES(cudnnCreate) MAKES(ncclCommInitRank) MAKES(ncclCommInitRankConfig) MAKES(nvmlDeviceGetHandleByIndex_v2)
SAYS(cudnnGetErrorString) SAYS(cusparseGetErrorString) SAYS(ncclGetErrorString) SAYS(ncclGetLastError) SAYS(nvrtcGetErrorString) SAYS(nvmlErrorString)
API size_t cublasLtGetVersion() { return 130003; }
API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* count) {
  memset(results, 0, 80);  // one algorithm, without a workspace of its own
  *count = 1;
  return 0;
}
API size_t cudnnGetVersion() { return 92000; }
API size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
API int ncclGetVersion(int* version) { *version = 22907; return 0; }
API int ncclCommGetAsyncError(void*, int* error) { *error = 0; return 0; }
API int ncclCommSplit(void*, int, int, void** made, void*) { *made = calloc(1, 4096); return 0; }
API int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 0; return 0; }
API int nvmlInit_v2() { return 0; }
API int nvmlShutdown() { return 0; }
API int nvmlDeviceGetCount_v2(unsigned* count) { *count = 1; return 0; }
API int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** made) { return nvmlDeviceGetHandleByIndex_v2(made); }
API int nvmlSystemGetCudaDriverVersion_v2(int* version) { *version = CUDART_VERSION; return 0; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(...) { return 3; }  // NVML_ERROR_NOT_SUPPORTED
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(...) { return 3; }
API int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) { *count = 0; return 0; }
API int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return 0; }
