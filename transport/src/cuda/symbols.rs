//! The CUDA driver library, loaded when it is first asked for: nothing of CUDA is needed to build.
//!
//! Names and signatures are those of `cuda.h`. Where it maps a name to a newer one (`cuMemAlloc` to `cuMemAlloc_v2`),
//! the newer one stands here, since the header's macros do not reach us. CUDA 11.4 has all of them.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

/// `CUresult`, 0 when all is well.
pub(super) type Answer = c_int;
/// `CUdevice`.
pub(super) type RawDevice = c_int;
/// `CUcontext`.
pub(super) type RawContext = *mut c_void;
/// `CUstream`.
pub(super) type RawStream = *mut c_void;
/// `CUevent`.
pub(super) type RawEvent = *mut c_void;
/// `CUdeviceptr`.
pub(super) type Address = u64;

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawUuid(pub [u8; 16]);

/// `CUipcMemHandle` and `CUipcEventHandle`: both are 64 bytes in a struct, and go by value into the calls that open
/// them, which is on the stack, not by a pointer.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawHandle(pub [u8; 64]);

const _: () = assert!(size_of::<RawHandle>() == 64 && align_of::<RawHandle>() == 1);
const _: () = assert!(size_of::<RawUuid>() == 16 && size_of::<usize>() == 8);

/// `CUDA_ERROR_NOT_READY`.
pub(super) const NOT_READY: Answer = 600;
/// `CU_STREAM_NON_BLOCKING`.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC`.
pub(super) const EVENT_BLOCKING_SYNC: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`, which asks for the one above too.
pub(super) const EVENT_INTERPROCESS: c_uint = 4;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag that the call takes.
pub(super) const IPC_LAZY_PEER_ACCESS: c_uint = 1;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`, an int.
pub(super) const POINTER_ORDINAL: c_int = 9;
/// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`. A bool that drivers write as one byte or as four, so that the
/// place for it is a zeroed int.
pub(super) const POINTER_LEGACY_IPC: c_int = 10;
/// `CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED`.
pub(super) const DEVICE_IPC_EVENTS: c_int = 125;

/// The loader's own words: they name the file or function that is missing.
fn why(error: &libloading::Error) -> String {
    let deepest = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source()).last();
    deepest.map_or_else(|| error.to_string(), ToString::to_string)
}

macro_rules! symbols {
    ($($field:ident = $name:literal ($($arg:ty),*);)*) => {
        /// The functions of the driver library.
        pub(super) struct Symbols {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> Answer,)*
            /// Unloaded last; the functions are its.
            _library: Library,
        }

        impl Symbols {
            /// Loads the library.
            ///
            /// # Errors
            /// There is none, or it lacks a function; the text says which.
            pub(super) fn load() -> Result<Self, String> {
                // SAFETY: the library's initialisers are those of the installed driver, which any CUDA program runs.
                let library = unsafe { Library::new("libcuda.so.1") }.map_err(|error| why(&error))?;
                Ok(Self {
                    // SAFETY: each name has the signature beside it in `cuda.h`, and the library outlives the
                    // pointer, being in the same struct.
                    $($field: *unsafe { library.get($name) }.map_err(|error| why(&error))?,)*
                    _library: library,
                })
            }
        }
    };
}

symbols! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (Answer, *mut *const c_char);
    error_text = "cuGetErrorString" (Answer, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut RawDevice, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, RawDevice);
    device_uuid = "cuDeviceGetUuid_v2" (*mut RawUuid, RawDevice);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, RawDevice);
    can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, RawDevice, RawDevice);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut RawContext, RawDevice);
    context_release = "cuDevicePrimaryCtxRelease_v2" (RawDevice);
    context_push = "cuCtxPushCurrent_v2" (RawContext);
    context_pop = "cuCtxPopCurrent_v2" (*mut RawContext);
    allocate = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    fill = "cuMemsetD8_v2" (Address, u8, usize);
    write = "cuMemcpyHtoD_v2" (Address, *const c_void, usize);
    read = "cuMemcpyDtoH_v2" (*mut c_void, Address, usize);
    copy = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, RawStream);
    address_range = "cuMemGetAddressRange_v2" (*mut Address, *mut usize, Address);
    pointer_attribute = "cuPointerGetAttribute" (*mut c_void, c_int, Address);
    stream_create = "cuStreamCreate" (*mut RawStream, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (RawStream);
    stream_synchronize = "cuStreamSynchronize" (RawStream);
    stream_wait_event = "cuStreamWaitEvent" (RawStream, RawEvent, c_uint);
    event_create = "cuEventCreate" (*mut RawEvent, c_uint);
    event_destroy = "cuEventDestroy_v2" (RawEvent);
    event_record = "cuEventRecord" (RawEvent, RawStream);
    event_query = "cuEventQuery" (RawEvent);
    event_synchronize = "cuEventSynchronize" (RawEvent);
    ipc_export = "cuIpcGetMemHandle" (*mut RawHandle, Address);
    ipc_open = "cuIpcOpenMemHandle_v2" (*mut Address, RawHandle, c_uint);
    ipc_close = "cuIpcCloseMemHandle" (Address);
    ipc_export_event = "cuIpcGetEventHandle" (*mut RawHandle, RawEvent);
    ipc_open_event = "cuIpcOpenEventHandle" (*mut RawEvent, RawHandle);
}
