//! Redirects standard input and output to a connection, the core of a reverse shell.

use std::fs::File;
use std::net::TcpStream;

use workload::Error;

use super::super::{Action, ActionEnvironment, Requirement, Stop, address};
use super::connection::listen;

pub(super) const ACTION: Action = Action::new(
    "syscall.RedirectSTDOUTSTDINToNetworkConnectionInContainer",
    "put a connection in place of the standard input",
    play,
)
.rule("Redirect STDOUT/STDIN to Network Connection in Container")
.also(&["Reverse shell"])
.inside()
.needs(&[Requirement::Address(address::PUBLIC)]);

fn play(_scene: &ActionEnvironment) -> Result<(), Stop> {
    let server = listen(address::PUBLIC, 4444)?;
    let connection = TcpStream::connect((address::PUBLIC, 4444)).map_err(Error::call("connect"))?;
    rustix::stdio::dup2_stdin(&connection).map_err(Error::call("replace the standard input"))?;
    drop(server);
    let nothing = File::open("/dev/null").map_err(Error::file("open", "/dev/null"))?;
    rustix::stdio::dup2_stdin(&nothing).map_err(Error::call("replace the standard input"))?;
    Ok(())
}
