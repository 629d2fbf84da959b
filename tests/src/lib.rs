//! Shared parts of the end-to-end tests. They start the built program on real workloads, as different users and
//! inside containers made of nothing but namespaces, and read its alerts.
//!
//! Functions panic with a message instead of returning errors, because any failure here fails a test.

pub mod account;
mod alert;
mod arm64;
pub mod attacks;
mod bare;
mod binary;
pub mod bpf_node;
mod case;
mod certificates;
pub mod cluster;
pub mod collector;
mod container;
pub mod cri;
mod day;
mod debian;
mod engine;
mod fixture;
mod found_process;
mod group;
mod guest;
mod guest_kernel;
mod host;
mod identity;
pub mod injection;
pub mod marks;
mod patience;
mod postman;
mod process;
mod recording;
pub mod responding;
mod rootfs;
mod rules;
pub mod runtime_fixture;
mod scratch;
mod watch;

pub use alert::{Alert, Pattern};
pub use bare::{BareRoot, ProcView, static_program};
pub use binary::{installed, program, repository, toolchain, which};
pub use case::{Case, TestProgram, act};
pub use certificates::certificates;
pub use container::{API_SERVER, BLACKHOLE_ADDRESS, CONTAINER_ID, PUBLIC_ADDRESS};
pub use day::day;
pub use debian::debian_root;
pub use engine::Engine;
pub use fixture::Fixture;
pub use found_process::FoundProcess;
pub use group::Group;
pub use guest::{Guest, GuestRun};
pub use guest_kernel::{GuestKernel, kernel_with_modules};
pub use host::{watch_host, watch_host_for};
pub use identity::Identity;
pub use patience::{until, wait_for};
pub use postman::SignalSender;
pub use process::{Finished, Limited};
pub use rootfs::Rootfs;
pub use rules::{
    SENTINEL, StockRule, builtin_rule_files, builtin_rules, default_rules, stock_rules,
    stock_rules_file,
};
pub use scratch::Scratch;
pub use testing::{is_root, need_root, need_slow, skip, skip_part, slow};
pub use watch::{Environment, Watch, WatchResult, same_environment};
