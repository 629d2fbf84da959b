//! Calls setns(2). The descriptor is not a namespace, so the call fails.

use std::fs::File;
use std::os::fd::AsRawFd;

use abi::Errno;
use workload::Error;

use super::super::{Action, ActionEnvironment, Stop};

pub(super) const ACTION: Action = Action::new(
    "syscall.ChangeThreadNamespace",
    "`setns` with a descriptor that is no namespace",
    play,
)
.optional_rule("Change thread namespace");

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    let file = File::open("/dev/null").map_err(Error::file("open", "/dev/null"))?;
    match sys::attempt::setns(file.as_raw_fd()) {
        Err(error) if error.is(Errno::EINVAL) => Ok(()),
        Err(error) => Err(Error::call("try setns")(error).into()),
        Ok(()) => Err(Error::Unexpected {
            expected: "setns to fail".to_owned(),
            got: "a namespace".to_owned(),
        }
        .into()),
    }
}
