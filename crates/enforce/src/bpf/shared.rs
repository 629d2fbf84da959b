//! Tables that containers share: one for each policy and shape of mounts, whatever the number of containers is.
//!
//! A table is kept with what it was made from, so that a later process finds it, and makes another version of it. It is there
//! as long as a container has it.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use policy::compile::bpf::Profile;

use super::Error;
use super::mount_shape::MountShape;
use super::programs::{Counter, KernelPrograms, cannot, create, put, word};
use super::tables::Tables;

/// Begin of the names of the files.
const FILE: &str = "shared-";
/// Length of the version, and of the fields before the owner.
const VERSION: usize = 16;
const HEAD: usize = VERSION + 4;

/// A table that containers share.
#[derive(Debug)]
pub(super) struct SharedTable {
    pub(super) number: u32,
    /// Tells the content of a policy from that of others of the same owner.
    version: [u8; VERSION],
    /// Whose policy it is. The policies of one owner are versions of one another.
    pub(super) owner: String,
    /// Text of the shape of the containers' mounts.
    pub(super) shape: String,
}

impl SharedTable {
    /// Returns true if it has this policy.
    pub(super) fn has(&self, profile: &Profile) -> bool {
        self.version == version(profile)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.version.to_vec();
        let length = u32::try_from(self.owner.len()).expect("names are short");
        bytes.extend(length.to_ne_bytes());
        bytes.extend(self.owner.as_bytes());
        bytes.extend(self.shape.as_bytes());
        bytes
    }

    /// `None` if these are not the bytes of a table.
    fn decode(number: u32, bytes: &[u8]) -> Option<Self> {
        let (version, _) = bytes.split_first_chunk()?;
        let length = usize::try_from(word(bytes, VERSION / 4)?).ok()?;
        let (owner, shape) = bytes.get(HEAD..)?.split_at_checked(length)?;
        Some(Self {
            number,
            version: *version,
            owner: String::from_utf8(owner.to_vec()).ok()?,
            shape: String::from_utf8(shape.to_vec()).ok()?,
        })
    }
}

/// Tells profiles apart. Another build of this program may tell the same ones apart: they share no table then.
fn version(profile: &Profile) -> [u8; VERSION] {
    let text = format!("{profile:?}");
    let mut version = [0; VERSION];
    for (seed, part) in version.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (seed, &text).hash(&mut hasher);
        part.copy_from_slice(&hasher.finish().to_ne_bytes());
    }
    version
}

impl KernelPrograms {
    /// The tables that are there.
    pub(super) fn shared_tables(&self) -> Result<Vec<SharedTable>, Error> {
        let mut tables = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(cannot(&self.folder))? {
            let name = entry.map_err(cannot(&self.folder))?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(FILE));
            let Some(number) = number.and_then(|number| number.parse().ok()) else {
                continue;
            };
            let found = self.shared_file(number)?.lookup(&[0; 4], MapFlags::ANY);
            let found = found.map_err(Error::map("shared"))?;
            let found = found.and_then(|bytes| SharedTable::decode(number, &bytes));
            tables.push(found.ok_or(Error::Missing { what: "origin" })?);
        }
        Ok(tables)
    }

    fn shared_path(&self, number: u32) -> std::path::PathBuf {
        self.folder.join(format!("{FILE}{number}"))
    }

    fn shared_file(&self, number: u32) -> Result<MapHandle, Error> {
        MapHandle::from_pinned_path(self.shared_path(number)).map_err(Error::map("shared"))
    }

    /// A table that a container has.
    pub(super) fn shared(&self, number: u32) -> Result<SharedTable, Error> {
        let mut tables = self.shared_tables()?.into_iter();
        let found = tables.find(|known| known.number == number);
        found.ok_or(Error::Missing { what: "origin" })
    }

    /// Returns the number of the table for containers with a policy and a shape, which is made if there is none.
    pub(super) fn shared_table(
        &self,
        owner: &str,
        profile: &Profile,
        shape: &MountShape,
    ) -> Result<u32, Error> {
        let version = version(profile);
        let known = self.shared_tables()?.into_iter().find(|known| {
            known.version == version && known.owner == owner && known.shape == shape.text
        });
        if let Some(known) = known {
            return Ok(known.number);
        }
        let table = SharedTable {
            number: self.next(Counter::Number)?,
            version,
            owner: owner.to_owned(),
            shape: shape.text.clone(),
        };
        let path = std::env::var_os("PATH");
        let tables = Tables::shared(profile, &table.shape, path.as_deref())?;
        let made = self
            .install(table.number, &tables)
            .and_then(|()| self.keep(&table));
        if let Err(error) = made {
            // Report only the first error.
            let _ = self.remove_shared(table.number);
            return Err(error);
        }
        Ok(table.number)
    }

    /// Keeps what a table was made from.
    fn keep(&self, table: &SharedTable) -> Result<(), Error> {
        let bytes = table.encode();
        let size = u32::try_from(bytes.len()).map_err(|_larger| Error::TooLarge {
            what: "mounts",
            limit: usize::MAX,
        })?;
        let mut file = create(MapType::Array, "shared", 4, size, 1)?;
        put(&file, "shared", &[0; 4], &bytes)?;
        file.pin(self.shared_path(table.number))
            .map_err(Error::map("shared"))
    }

    /// Tables of an owner that have another policy of his.
    pub(super) fn outdated(
        &self,
        owner: &str,
        profile: &Profile,
    ) -> Result<Vec<SharedTable>, Error> {
        let mut tables = self.shared_tables()?;
        tables.retain(|table| table.owner == owner && !table.has(profile));
        Ok(tables)
    }

    /// Gives a table another version, made without the lock. Returns false if the table is gone, or has it by now.
    pub(super) fn change_shared(
        &self,
        table: &SharedTable,
        profile: &Profile,
        tables: &Tables,
    ) -> Result<bool, Error> {
        let mut current = self.outdated(&table.owner, profile)?.into_iter();
        let Some(mut current) = current.find(|current| current.number == table.number) else {
            return Ok(false);
        };
        self.replace(current.number, tables)?;
        current.version = version(profile);
        let file = self.shared_file(current.number)?;
        put(&file, "shared", &[0; 4], &current.encode())?;
        Ok(true)
    }

    /// Removes the tables but those with these numbers.
    pub(super) fn retain_shared(&self, used: &BTreeSet<u32>) -> Result<(), Error> {
        for table in self.shared_tables()? {
            if !used.contains(&table.number) {
                self.remove_shared(table.number)?;
            }
        }
        // Processes that were killed leave tables that nobody has: without a file, and without a ledger.
        let mut known: BTreeSet<u32> = self.numbers("ledgers")?;
        known.extend(self.shared_tables()?.iter().map(|table| table.number));
        let mut numbers = self.numbers("generations")?;
        numbers.extend(self.numbers("policies")?);
        numbers
            .difference(&known)
            .try_for_each(|number| self.remove(*number))
    }

    fn remove_shared(&self, number: u32) -> Result<(), Error> {
        // First: who finds the file takes the table for whole.
        let path = self.shared_path(number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(cannot(&path)(error));
            }
            _ => {}
        }
        self.remove(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let table = SharedTable {
            number: 7,
            version: [3; VERSION],
            owner: "demo/web".to_owned(),
            shape: "0 0 0:0 / / - any\n".to_owned(),
        };
        let bytes = table.encode();
        let read = SharedTable::decode(7, &bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{table:?}"));
        for length in 0..HEAD + table.owner.len() {
            assert!(SharedTable::decode(7, &bytes[..length]).is_none());
        }
    }
}
