//! Overlays that show files which rules name: the layer's file has another inode number there.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use rustix::io::Errno;

use super::inodes::{Identity, is_absence};
use super::walk::{self, Caller, LookupFlags};
use process_info::procfs::{mount_lines, unescape};

/// Maximum number of cached layer directories, by mount and text.
const LAYER_LIMIT: usize = 4096;

/// Layers of a root's overlays. A mount's layers never change after it is made, so each is looked up once.
#[derive(Debug, Default)]
pub(super) struct Layers {
    known: HashMap<(u64, Vec<u8>), Option<Identity>>,
}

/// Files that overlays show of those that rules name.
#[derive(Debug, Default)]
pub(super) struct Overlays {
    /// Files of overlays, with the index of the path that rules have for them.
    pub(super) files: Vec<(Identity, usize)>,
    /// True if the lookup of some layers or paths failed.
    pub(super) has_unknown: bool,
}

impl Overlays {
    /// Returns the value; an error other than a missing file marks the result as incomplete.
    fn sure<T>(&mut self, found: Result<T, Errno>) -> Option<T> {
        if let Err(errno) = &found {
            self.has_unknown |= !is_absence(*errno);
        }
        found.ok()
    }
}

impl Layers {
    /// Returns the files of overlays through which a caller sees the files of `paths`.
    pub(super) fn files(&mut self, caller: Caller<'_>, paths: &[Vec<u8>]) -> Overlays {
        let mut all = Overlays::default();
        let Ok(mounts) = caller.inspector.mounts(caller.reader()) else {
            all.has_unknown = true;
            return all;
        };
        let overlays = mount_lines(&mounts).filter(|mount| mount.fs_type == b"overlay");
        let mut folders = None;
        for mount in overlays {
            for layer in layers(mount.super_options) {
                let identity = self.identity(caller, mount.id, layer);
                let Some(identity) = all.sure(identity).flatten() else {
                    continue;
                };
                let folders = folders.get_or_insert_with(|| folders_of(caller, paths, &mut all));
                for (number, way) in folders.get(&identity).into_iter().flatten() {
                    // The mount may show only a folder of the overlay.
                    let root = unescape(mount.root);
                    let Some(way) = way.strip_prefix(root.strip_suffix(b"/").unwrap_or(&root))
                    else {
                        continue;
                    };
                    let name = [&unescape(mount.mount_point), way].concat();
                    let found = walk::find(caller, &name, None, LookupFlags::default());
                    if let Some(place) = all.sure(found) {
                        all.files.push((Identity::of(&place.stat), *number));
                    }
                }
            }
        }
        all
    }

    /// Returns the identity of a layer's directory; `None` if it does not exist.
    fn identity(
        &mut self,
        caller: Caller<'_>,
        mount: u64,
        layer: Vec<u8>,
    ) -> Result<Option<Identity>, Errno> {
        let key = (mount, layer);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let found = match walk::find(caller, &key.1, None, LookupFlags::default()) {
            Ok(place) => Some(Identity::of(&place.stat)),
            Err(errno) if is_absence(errno) => None,
            Err(errno) => return Err(errno),
        };
        if self.known.len() >= LAYER_LIMIT {
            self.known.clear();
        }
        self.known.insert(key, found);
        Ok(found)
    }
}

/// Returns the folders that contain `paths`, with the index of each path and its remainder below the folder.
fn folders_of(
    caller: Caller<'_>,
    paths: &[Vec<u8>],
    all: &mut Overlays,
) -> HashMap<Identity, Vec<(usize, Vec<u8>)>> {
    let mut ways: BTreeMap<&[u8], Vec<(usize, &[u8])>> = BTreeMap::new();
    for (number, path) in paths.iter().enumerate() {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends {
            let folder = if end == 0 { &b"/"[..] } else { &path[..end] };
            ways.entry(folder).or_default().push((number, &path[end..]));
        }
    }
    let names: Vec<_> = ways.keys().copied().collect();
    let mut folders: HashMap<Identity, Vec<(usize, Vec<u8>)>> = HashMap::new();
    let _all = walk::find_each(caller, &names, &mut |number, found| {
        if let Some(place) = all.sure(found) {
            let below = ways[names[number]].iter();
            folders
                .entry(Identity::of(&place.stat))
                .or_default()
                .extend(below.map(|(number, way)| (*number, way.to_vec())));
        }
        ControlFlow::Continue(())
    });
    folders
}

/// Parses the layer directories from an overlay's options. Relative ones are relative to the folder of the
/// process that mounted it.
pub(super) fn layers(options: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    options
        .split(|byte| *byte == b',')
        .filter_map(|option| {
            let (name, value) = option.split_at(option.iter().position(|byte| *byte == b'=')?);
            let is_layer =
                [&b"lowerdir"[..], b"lowerdir+", b"datadir+", b"upperdir"].contains(&name);
            is_layer.then(|| unescape(&value[1..]).into_owned())
        })
        .flat_map(|value| directories(&value))
        .filter(|layer| layer.starts_with(b"/"))
}

/// Splits at colons; `\:` is part of a name.
fn directories(value: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        let last = all.last_mut().expect("one is there from the start");
        match byte {
            b'\\' => last.extend(bytes.next()),
            b':' => all.push(Vec::new()),
            byte => last.push(*byte),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_read_from_the_options_of_a_mount() {
        let options =
            b"rw,lowerdir=/a:/b\\134:c::relative,lowerdir+=/d\\040e,upperdir=/u,workdir=/w";
        let found: Vec<_> = layers(options).collect();
        let wanted: [&[u8]; 5] = [b"/a", b"/b:c", b"/d e", b"/u", b""];
        assert_eq!(found, &wanted[..4]);
    }
}
