//! Control groups that are cut off from the network: programs of bpf/quarantine.bpf.c.
//!
//! A control group that is cut off has a folder in the BPF file system with two links. They stay, and with them the
//! quarantine, until the folder is removed or the control group is, whatever becomes of this process.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenObject};
use rustix::fs::FlockOperation;

use crate::bpf::Error;
use crate::bpf::programs::{FILE_SYSTEM, cannot, check_file_system, lock, make_folder, put};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/quarantine.bpf.o"));
const FOLDER: &str = "tollgate-quarantine";
const ALLOWED: &str = "allowed";
const PROGRAMS: [&str; 2] = ["leaving", "arriving"];
/// Networks that one control group may reach: `NETWORKS` of the programs.
pub(crate) const MOST_NETWORKS: usize = 1024;
/// Bits of an address before those of IPv4 in the form of IPv6.
const MAPPED_BITS: u32 = 96;

/// A network by its first address and the length of its prefix.
pub(crate) type Network = (IpAddr, u8);

/// Checks that the kernel takes the programs.
///
/// # Errors
///
/// What is missing.
pub fn try_quarantine() -> Result<(), Error> {
    check_file_system()?;
    load().map(drop)
}

/// Cuts a control group off from all networks but these, connections that exist included. Returns the folder by whose removal
/// that ends, and false if it was cut off before, with the networks of then.
///
/// # Errors
///
/// What the kernel refuses. Nothing is cut off then.
pub fn quarantine(group: &File, allowed: &[Network]) -> Result<(PathBuf, bool), Error> {
    check_file_system()?;
    let above = Path::new(FILE_SYSTEM).join(FOLDER);
    make_folder(&above)?;
    // One at a time: half a quarantine of another thread looks like one that was left.
    let _lock = lock(&above, FlockOperation::LockExclusive)?;
    // A number that the kernel gives to no other control group until it is started again.
    let number = group.metadata().map_err(cannot(&above))?.ino();
    let folder = above.join(number.to_string());
    match fs::create_dir(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_whole(&folder) => {
            return Ok((folder, false));
        }
        // A process that was killed has made it in part.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => remove_pins(&folder)?,
        Err(error) => return Err(cannot(&folder)(error)),
    }
    let attached = attach(group, allowed, &folder);
    if let Err(error) = attached {
        // What is left of it cuts nothing off that whoever reads the error does not know of.
        let _ = end_quarantine(&folder);
        return Err(error);
    }
    Ok((folder, true))
}

/// Ends a quarantine. Returns false if it had ended.
///
/// # Errors
///
/// The folder cannot be removed.
pub fn end_quarantine(folder: &Path) -> Result<bool, Error> {
    remove_pins(folder)?;
    match fs::remove_dir(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot(folder)(error)),
    }
}

fn is_whole(folder: &Path) -> bool {
    PROGRAMS.iter().all(|name| folder.join(name).exists())
}

fn remove_pins(folder: &Path) -> Result<(), Error> {
    for name in PROGRAMS {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot(&path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn load() -> Result<Object, Error> {
    let object = ObjectBuilder::default().open_memory(OBJECT);
    object.and_then(OpenObject::load).map_err(Error::load)
}

fn attach(group: &File, allowed: &[Network], folder: &Path) -> Result<(), Error> {
    let object = load()?;
    fill(&object, allowed)?;
    for name in PROGRAMS {
        let mut programs = object.progs_mut();
        let found = programs.find(|program| program.name() == name);
        let program = found.ok_or(Error::Missing { what: "program" })?;
        let attached = program.attach_cgroup(group.as_raw_fd());
        let mut link = attached.map_err(Error::load)?;
        link.pin(folder.join(name)).map_err(Error::load)?;
    }
    Ok(())
}

fn fill(object: &Object, allowed: &[Network]) -> Result<(), Error> {
    if allowed.len() > MOST_NETWORKS {
        return Err(Error::TooLarge {
            what: "networks that stay reachable",
            limit: MOST_NETWORKS,
        });
    }
    let mut maps = object.maps();
    let found = maps.find(|map| map.name() == ALLOWED);
    let found = found.ok_or(Error::Missing { what: "table" })?;
    let table = MapHandle::try_from(&found).map_err(Error::map(ALLOWED))?;
    for network in allowed {
        put(&table, ALLOWED, &key(*network), &1_u32.to_ne_bytes())?;
    }
    Ok(())
}

/// Returns `struct address` of a network.
fn key((address, length): Network) -> [u8; 20] {
    let (bits, octets) = match address {
        IpAddr::V4(address) => (
            MAPPED_BITS + u32::from(length),
            address.to_ipv6_mapped().octets(),
        ),
        IpAddr::V6(address) => (u32::from(length), address.octets()),
    };
    let mut key = [0; 20];
    key[..4].copy_from_slice(&bits.to_ne_bytes());
    key[4..].copy_from_slice(&octets);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_ipv4_are_mapped() {
        let network = ("10.1.0.0".parse().expect("an address"), 16);
        let key = key(network);
        assert_eq!(key[..4], 112_u32.to_ne_bytes());
        assert_eq!(key[14..], [0xff, 0xff, 10, 1, 0, 0]);
    }
}
