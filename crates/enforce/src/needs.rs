//! Which capabilities processes use, as the kernel's tracepoint `cap_capable` tells it (bpf/needs.bpf.c).

use std::io;

use abi::Capabilities;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder};

use crate::bpf::Error;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/needs.bpf.o"));

/// Set for a process that the kernel was asked about at all.
const ASKED: u64 = 1 << 63;

/// Listens for as long as it lives.
#[derive(Debug)]
pub struct ListenerHelper {
    _link: Link,
    uses: MapHandle,
    lost: MapHandle,
}

impl ListenerHelper {
    /// Begins to listen to all processes.
    ///
    /// # Kernel
    /// 6.14; CAP_BPF and CAP_PERFMON, and the first namespace of process numbers.
    ///
    /// # Errors
    /// If that is not possible here.
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

    /// Taking memory of the kernel is a question; the C library keeps none of this size in stock. Where this
    /// process has another number than the first namespace gives it, none is found.
    fn try_it(&self) -> Result<(), Error> {
        // An allocation that nobody looks at would not be made.
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

    /// Forgets what a process used so far: it is about to execute what is to be judged.
    ///
    /// # Errors
    /// If the table is out of reach.
    pub fn forget(&self, pid: u32) -> Result<(), Error> {
        match self.uses.delete(&pid.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::map("uses")(error))
            }
            _ => Ok(()),
        }
    }

    /// What a process used.
    ///
    /// # Errors
    /// If the table is out of reach, or had no room for all processes.
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
