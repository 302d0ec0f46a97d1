//! Python bindings of splitcore: they convert, lock and detach; the core decides.

// Arguments come from Python as owned values.
#![allow(clippy::needless_pass_by_value)]

mod arguments;
mod arrays;
mod bench_transfer;
mod calls;
mod clock;
mod cluster;
mod errors;
mod events;
mod hardware;
mod machine;
mod placement;
mod plan;
mod replay;
mod serve;
mod simulate;
mod swarm;
mod transfer;
mod watched;
mod worker;

/// The compiled scheduler core. Import these names from `splitcore`.
#[pyo3::pymodule]
mod _native {
    /// The version of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "as Python names it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::bench_transfer::{bench_transfer, bench_transfer_receive};
    #[pymodule_export]
    use crate::cluster::Cluster;
    #[pymodule_export]
    use crate::errors::{
        ConfigError, DuplicateMachineError, DuplicateRequestError, EventError, HandshakeError, InputError,
        RejectedError, SimulationStuckError, SplitcoreError, TransferError, UnknownIdError,
    };
    #[pymodule_export]
    use crate::events::{Handled, Snapshot};
    #[pymodule_export]
    use crate::hardware::{machine_price, machine_types};
    #[pymodule_export]
    use crate::machine::Machine;
    #[pymodule_export]
    use crate::placement::{Leg, PlacedMany, Placement, Polled, Recovery, Why};
    #[pymodule_export]
    use crate::plan::{
        Cache, Search, capacity, design_presets, judge, mean_interval, placement, provision, published_pools,
        slo_set,
    };
    #[pymodule_export]
    use crate::replay::replay;
    #[pymodule_export]
    use crate::serve::serve;
    #[pymodule_export]
    use crate::simulate::{Report, profile_fit, simulate, workload};
    #[pymodule_export]
    use crate::swarm::swarm;
    #[pymodule_export]
    use crate::transfer::{
        Arrival, Books, Completion, CudaPool, CudaStream, Grant, KvLayout, LayerSeal, Link, Pool, Receiver,
        TransferKey, TransferPlan, WriterStops, choose_backend, connect, cuda_devices, new_incarnation,
        plan_transfer, senders,
    };
    #[pymodule_export]
    use crate::worker::{Pass, Worker};
}
