//! What machines run, and whether they can run here.

use std::fs;
use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use probe::Support;

use super::{Settings, qemu};
use crate::Kernel;

/// The kernel that is configured, or the newest of Debian's small ones that is installed.
pub(super) fn kernel(settings: &Settings) -> Result<Kernel, Failure> {
    let options = &settings.config.runtime;
    let given = |path: &'_ Path| (!path.as_os_str().is_empty()).then(|| path.to_owned());
    let (image, modules) = (given(&options.vm_kernel), given(&options.vm_modules));
    Kernel::find(image.as_deref(), modules.as_deref()).map_err(|error| {
        Failure::from_error(Exit::Unsupported, &error)
            .help("install linux-image-cloud-amd64, or name a kernel as `runtime.vm_kernel`")
    })
}

/// Whether virtual machines can be made here, by the usual configuration.
#[must_use]
pub fn support() -> Support {
    let path = std::env::var_os("PATH");
    let kernel = Settings::load(None).and_then(|settings| kernel(&settings));
    let kernel = match (
        kernel,
        diagnostics::lookup::resolve(qemu::EMULATOR.as_ref(), path.as_deref()),
    ) {
        (_, Err(_)) => {
            return Support::No {
                why: format!("there is no {}", qemu::EMULATOR),
                fix: "install qemu-system-x86 and linux-image-cloud-amd64".to_owned(),
            };
        }
        (Err(failure), _) => {
            return Support::No {
                why: failure.message().to_owned(),
                fix: "install linux-image-cloud-amd64, or set `runtime.vm_kernel`".to_owned(),
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

/// Why machines have to be emulated. There are KVMs without the processor's help, which boot no ordinary
/// kernel.
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
