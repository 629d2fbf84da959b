//! Violations in the containers that share tables: one ring has those of all.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use sys::time::{Clock, now_ns};

use super::Error;
use super::programs::{ALL, KernelPrograms, ledger, word};
use super::records::Reader;
use crate::Denial;

/// Number of records that this process could not read, in all streams.
static SKIPPED: AtomicU64 = AtomicU64::new(0);

/// A violation in a container.
#[derive(Clone, Debug)]
pub struct ContainerViolation {
    /// Number of the container, which [`confine_container`](super::confine_container) has returned.
    pub number: u32,
    /// How long ago it was.
    pub age: Duration,
    /// What was denied or reported.
    pub denial: Denial,
}

/// The stream of violations of all containers. It goes on where the process before has ended.
#[derive(Debug)]
pub struct ContainerReports {
    ring: RingBuffer<'static>,
    /// Id of the ring.
    id: u32,
    ledgers: MapHandle,
    /// Keeps the programs.
    _programs: OwnedFd,
}

impl ContainerReports {
    /// Opens the stream; `None` if no policy was prepared. Each violation is taken before the kernel hears that it was read.
    ///
    /// # Errors
    /// Fails if the tables are not accessible.
    pub fn open(mut take: impl FnMut(ContainerViolation) + 'static) -> Result<Option<Self>, Error> {
        let Some(id) = current()? else {
            return Ok(None);
        };
        let kernel = KernelPrograms::open()?;
        let programs = kernel.keep_programs()?;
        let (ring, rules, ledgers) = kernel.reports(ALL)?;
        let mut reader = Reader::new(rules);
        let mut builder = RingBufferBuilder::new();
        let added = builder.add(&ring, move |record| {
            match reader.read(record) {
                Some(read) => take(ContainerViolation {
                    number: read.number,
                    age: Duration::from_nanos(now_ns(Clock::Boot).saturating_sub(read.time_ns)),
                    denial: read.denial,
                }),
                None => drop(SKIPPED.fetch_add(1, Ordering::Relaxed)),
            }
            0
        });
        added.map_err(Error::map("rings"))?;
        let ring = builder.build().map_err(Error::map("rings"))?;
        Ok(Some(Self {
            ring,
            id,
            ledgers,
            _programs: programs,
        }))
    }

    /// Returns false if the programs report to another stream: who has removed them with the last policy has others by now.
    ///
    /// # Errors
    /// Fails if the tables are not accessible.
    pub fn is_current(&self) -> Result<bool, Error> {
        Ok(current()? == Some(self.id))
    }

    /// Waits up to `limit` for violations, and takes those that have arrived.
    ///
    /// # Errors
    /// Fails if the ring buffer cannot be read.
    pub fn wait(&self, limit: Duration) -> Result<(), Error> {
        self.ring.poll(limit).map_err(Error::map("rings"))
    }

    /// Number of violations that were lost for lack of room or cannot be read, since the programs were loaded.
    ///
    /// # Errors
    /// Fails if the counter cannot be read.
    pub fn lost(&self) -> Result<u64, Error> {
        let counts = ledger(&self.ledgers, ALL)?;
        let counts = counts.ok_or(Error::Missing { what: "ledger" })?;
        let [_, _, _, lost, ..] = counts;
        Ok(lost + SKIPPED.load(Ordering::Relaxed))
    }
}

/// Id of the ring of all containers; `None` if there is none.
fn current() -> Result<Option<u32>, Error> {
    if !super::is_ever_used() {
        return Ok(None);
    }
    let kernel = KernelPrograms::open()?;
    if !kernel.map_path("rings").exists() {
        return Ok(None);
    }
    let found = kernel
        .map("rings")?
        .lookup(&ALL.to_ne_bytes(), MapFlags::ANY);
    let found = found.map_err(Error::map("rings"))?;
    Ok(found.and_then(|bytes| word(&bytes, 0)))
}
