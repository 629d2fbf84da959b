//! Checks whether virtual machines can run on this host, and selects their kernel.

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use probe::{Support, fix};

use super::{Settings, qemu};
use crate::Kernel;

const ONLY_X86: &str = "run the container without a machine, or on an x86-64 host";

/// Returns the configured kernel, or else the newest installed one of Debian's cloud kernels.
pub(super) fn kernel(settings: &Settings) -> Result<Kernel, Failure> {
    if !cfg!(target_arch = "x86_64") {
        let message = format!("cannot start a virtual machine on {ARCH}");
        return Err(Failure::new(Exit::Unsupported, message).help(ONLY_X86));
    }
    let options = &settings.config.runtime;
    let given = |path: &'_ Path| (!path.as_os_str().is_empty()).then(|| path.to_owned());
    let (image, modules) = (given(&options.vm_kernel), given(&options.vm_modules));
    Kernel::find(image.as_deref(), modules.as_deref()).map_err(|error| {
        Failure::from_error(Exit::Unsupported, &error)
            .help("install linux-image-cloud-amd64, or name a kernel as `runtime.vm_kernel`")
    })
}

/// Reports whether virtual machines can run on this host with the default configuration.
#[must_use]
pub fn support() -> Support {
    if !cfg!(target_arch = "x86_64") {
        return Support::No {
            why: format!("virtual machines are supported on x86-64 only, not on {ARCH}"),
            fix: None,
        };
    }
    let path = std::env::var_os("PATH");
    let kernel = Settings::load(None).and_then(|settings| kernel(&settings));
    let kernel = match (
        kernel,
        diagnostics::lookup::resolve(qemu::EMULATOR.as_ref(), path.as_deref()),
    ) {
        (_, Err(_)) => {
            return Support::No {
                why: format!("there is no {}", qemu::EMULATOR),
                fix: fix::install_machine("qemu-system-x86"),
            };
        }
        (Err(failure), _) => {
            return Support::No {
                why: failure.message().to_owned(),
                fix: fix::install_machine(""),
            };
        }
        (Ok(kernel), Ok(_)) => kernel,
    };
    match why_not_kvm() {
        None => Support::Yes {
            seen: format!("QEMU by KVM, Linux {}", kernel.release),
        },
        Some(why) => Support::Partial {
            why: format!("by emulation, Linux {}; {why}", kernel.release),
            fix: None,
        },
    }
}

/// Returns the reason why machines must be emulated. Some KVMs work without hardware support and
/// cannot boot an ordinary kernel.
pub(super) fn why_not_kvm() -> Option<String> {
    if let Err(cause) = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
    {
        return Some(format!("/dev/kvm: {cause}"));
    }
    let helps = |text: &str| {
        text.split_ascii_whitespace()
            .any(|flag| flag == "vmx" || flag == "svm")
    };
    match fs::read_to_string("/proc/cpuinfo") {
        Ok(text) if helps(&text) => None,
        Ok(_) => Some("the processor shows neither vmx nor svm".to_owned()),
        Err(cause) => Some(format!("/proc/cpuinfo: {cause}")),
    }
}
