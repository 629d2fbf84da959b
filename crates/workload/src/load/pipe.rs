//! Sends a number to another process and back: two switches between processes.
//!
//! The other process is this program again, in the role [`ECHO`].

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::unistd;

use crate::Error;
use crate::measure::{Batch, Setup};

/// Role of the process that sends back what it receives.
pub(crate) const ECHO: &str = "echo";

pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    let mut peer = Peer::start(setup)?;
    let mut number = 0_u64;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            number += 1;
            let back = peer.exchange(number)?;
            if back != number {
                let (expected, got) = (number.to_string(), back.to_string());
                return Err(Error::Unexpected { expected, got });
            }
        }
        Ok(())
    }))
}

struct Peer {
    process: Child,
    /// Both ends; present until the drop.
    ends: Option<(ChildStdin, ChildStdout)>,
}

impl Peer {
    fn start(setup: &Setup) -> Result<Self, Error> {
        let mut process = Command::new(&setup.program)
            .args(["workload", "pipe", "--role", ECHO])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::call("start the other process"))?;
        let ends = process.stdin.take().zip(process.stdout.take());
        let mut peer = Self { process, ends };
        // The start of the other process is not part of any operation.
        peer.exchange(0)?;
        Ok(peer)
    }

    fn exchange(&mut self, number: u64) -> Result<u64, Error> {
        let (to, from) = self
            .ends
            .as_mut()
            .expect("the ends are taken by the drop alone");
        to.write_all(&number.to_ne_bytes())
            .map_err(Error::call("write to the other process"))?;
        let mut back = [0; 8];
        from.read_exact(&mut back)
            .map_err(Error::call("read from the other process"))?;
        Ok(u64::from_ne_bytes(back))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Closing its standard input ends the other process.
        self.ends = None;
        let _ = self.process.wait();
    }
}

/// Sends back what arrives, until the end of the input.
pub(crate) fn echo() -> Result<(), Error> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let mut bytes = [0; 8];
    loop {
        let count = unistd::read(&input, &mut bytes).map_err(Error::call("read"))?;
        if count == 0 {
            return Ok(());
        }
        unistd::write(&output, &bytes[..count]).map_err(Error::call("write"))?;
    }
}
