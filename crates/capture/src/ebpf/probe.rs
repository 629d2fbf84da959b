//! Probes whether the engine works on this host.

use std::path::Path;

use event::{CallPlan, Need, Plan};
use probe::{Support, fix};
use sys::features::KernelVersion;

use super::error::Error;
use super::hooks::{Attachment, Hooks};
use super::maps::{Control, Scope};
use super::programs::{Programs, RingSizes};
use super::tables::Tables;

/// First kernel version with what the programs use (docs/howto/watch-a-host.md).
const OLDEST: KernelVersion = KernelVersion::new(5, 11);

/// Returns whether the engine works on this host, and which hooks it would use.
pub fn probe() -> Support {
    match attach() {
        Ok(attachment) => Support::yes(format!("works ({attachment})")),
        Err(error) if !Path::new("/sys/kernel/btf/vmlinux").exists() => Support::no(
            format!("{error}: no /sys/kernel/btf/vmlinux"),
            "boot a kernel with CONFIG_DEBUG_INFO_BTF",
        ),
        Err(error) => {
            let mut why = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                why = format!("{why}: {cause}");
            }
            let uname = rustix::system::uname();
            let kernel = KernelVersion::parse(&uname.release().to_string_lossy());
            match kernel.is_some_and(|version| version < OLDEST) {
                true => Support::no(why, fix::newer_kernel("5.11")),
                false => Support::no_unless_fixed(why, fix::run_as_root("tollgate watch")),
            }
        }
    }
}

/// Loads and attaches the programs as for a few typical calls, and detaches them.
fn attach() -> Result<Attachment, Error> {
    let sizes = RingSizes {
        critical: 64 << 10,
        bulk: 64 << 10,
    };
    let control = Control {
        // Nothing is to be reported.
        scope: Scope::Pids,
        ..Control::default()
    };
    let tables = Tables::new(&sample(), false)?;
    let mut programs = Programs::load(sizes, control, Hooks::Auto)?;
    programs.attach_processes()?;
    programs.attach_calls(&tables)
}

/// Returns a plan of calls that rules typically ask for.
fn sample() -> Plan {
    let call = |call| {
        let planned = CallPlan {
            any_of: vec![Vec::new()],
            strings: false,
            result: Need::Never,
            reasons: Vec::new(),
        };
        (call, planned)
    };
    Plan {
        calls: [
            abi::Syscall::OPENAT,
            abi::Syscall::CONNECT,
            abi::Syscall::PTRACE,
        ]
        .map(call)
        .into(),
        ..Plan::default()
    }
}
