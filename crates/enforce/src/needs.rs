//! Observer of the capabilities that processes use, at the kernel's tracepoint `cap_capable`
//! (bpf/needs.bpf.c).

use std::io;

use abi::Capabilities;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder};

use crate::bpf::Error;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/needs.bpf.o"));

/// Bit that is set for a process with at least one capability check.
const ASKED: u64 = 1 << 63;

/// The attached observer. It detaches on drop.
#[derive(Debug)]
pub struct ListenerHelper {
    _link: Link,
    uses: MapHandle,
    lost: MapHandle,
}

impl ListenerHelper {
    /// Starts to observe all processes.
    ///
    /// # Kernel
    /// 6.14; CAP_BPF and CAP_PERFMON, and the initial pid namespace.
    ///
    /// # Errors
    /// Fails if the host does not support this.
    pub fn listen() -> Result<Self, Error> {
        let object = ObjectBuilder::default().open_memory(OBJECT);
        let object = object.and_then(libbpf_rs::OpenObject::load);
        let object = object.map_err(Error::load)?;
        let program = object.progs_mut().next();
        let program = program.ok_or(Error::Missing { what: "program" })?;
        let link = program.attach().map_err(|cause| Error::Attach {
            hook: "cap_capable".to_owned(),
            cause,
        })?;
        let map = |wanted: &'static str| {
            let mut maps = object.maps();
            let found = maps.find(|map| map.name().to_string_lossy().ends_with(wanted));
            let found = found.ok_or(Error::Missing { what: "table" })?;
            MapHandle::try_from(&found).map_err(Error::map(wanted))
        };
        let needs = Self {
            uses: map("uses")?,
            lost: map(".bss")?,
            _link: link,
        };
        needs.try_it()?;
        Ok(needs)
    }

    /// Checks that an allocation of this process is observed: each one asks for a capability, and the C
    /// library does not cache allocations of this size. Outside of the initial pid namespace, the process has
    /// another number and is not found.
    fn try_it(&self) -> Result<(), Error> {
        // The compiler would remove an unused allocation.
        let taken = std::hint::black_box(vec![0_u8; 1 << 26]);
        let is_found = self.word(std::process::id())?.is_some();
        drop(taken);
        match is_found {
            true => Ok(()),
            false => Err(Error::Lacks {
                lack: "this process has another number where processes are counted first"
                    .to_owned(),
            }),
        }
    }

    /// Clears the record of a process that is about to execute the program to be observed.
    ///
    /// # Errors
    /// Fails if the table is not accessible.
    pub fn forget(&self, pid: u32) -> Result<(), Error> {
        match self.uses.delete(&pid.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::map("uses")(error))
            }
            _ => Ok(()),
        }
    }

    /// The capabilities that a process used.
    ///
    /// # Errors
    /// Fails if the table is not accessible, or had no room for all processes.
    pub fn of(&self, pid: u32) -> Result<Capabilities, Error> {
        let lost = self.lost.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let lost = lost.map_err(Error::map("lost"))?;
        if lost.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0)) {
            return Err(Error::Lacks {
                lack: "there are more processes than the table of capabilities has room for"
                    .to_owned(),
            });
        }
        Ok(Capabilities(self.word(pid)?.unwrap_or(0) & !ASKED))
    }

    fn word(&self, pid: u32) -> Result<Option<u64>, Error> {
        let found = self.uses.lookup(&pid.to_ne_bytes(), MapFlags::ANY);
        let Some(bytes) = found.map_err(Error::map("uses"))? else {
            return Ok(None);
        };
        let word = <[u8; 8]>::try_from(bytes.as_slice()).map_err(|_length_only| Error::Path {
            path: "the table of capabilities".to_owned(),
            cause: io::ErrorKind::InvalidData.into(),
        })?;
        Ok(Some(u64::from_ne_bytes(word)))
    }
}
