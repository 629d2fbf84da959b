//! Loads Falco plugins for `tollgate`, which starts this program; see the crate `plugin`.
//!
//! The standard input is the socket to the program that asks. A plugin runs in this process and may crash or hang it;
//! whoever started it notices, and starts it again.

mod abi;
mod address;
mod asynchronous;
mod confine;
mod describe;
mod event;
mod serve;
mod stream;

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use plugin::protocol::PROGRAM;
use rustix::process::Signal;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{PROGRAM}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    if std::env::args_os().len() > 1 {
        return Err(
            "takes no arguments: `tollgate falco` starts it for each event source of a plugin"
                .to_owned(),
        );
    }
    // The thread that started this process waits for it; without it nobody would end a plugin that hangs.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot follow the end of its parent: {error}"))?;
    let socket = socket().map_err(|error| {
        format!("its standard input is no socket ({error}); `tollgate falco` starts it")
    })?;
    serve::serve(socket);
    Ok(())
}

/// Takes the socket away from the standard input, which plugins may read.
fn socket() -> std::io::Result<UnixStream> {
    let socket = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)?;
    let stream = UnixStream::from(socket);
    // Fails for anything but a socket.
    stream.peer_addr()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(stream)
}
