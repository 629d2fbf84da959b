//! Loads a kernel module from a container. The file is not a module, so the kernel refuses it.

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.LinuxKernelModuleInjectionDetected",
    "`init_module` of something that is no module",
    play,
)
.rule("Linux Kernel Module Injection Detected")
.also(&["Load kernel module"])
.inside()
.needs(&[Requirement::Capability("CAP_SYS_MODULE")]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    match sys::attempt::init_module(b"no module") {
        Err(_refused) => Ok(()),
        Ok(()) => Err(Error::Unexpected {
            expected: "the kernel to refuse what is no module".to_owned(),
            got: "a module".to_owned(),
        }
        .into()),
    }
}
