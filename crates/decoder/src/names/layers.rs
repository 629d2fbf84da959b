//! Overlays that show files which rules name: the file of a layer is there under another number.

use std::collections::HashMap;

use rustix::io::Errno;

use super::inodes::{Identity, is_absence};
use super::walk::{self, Caller, LookupFlags};
use process_info::procfs::{mount_lines, unescape};

/// Directories of layers that are known at once, by mount and text.
const LAYER_LIMIT: usize = 4096;

/// What the layers of a root's overlays are. A mount's layers stay what they were when it was made, so each is
/// looked at once.
#[derive(Debug, Default)]
pub(super) struct Layers {
    known: HashMap<(u64, Vec<u8>), Option<Identity>>,
}

/// What overlays show of files that rules name.
#[derive(Debug, Default)]
pub(super) struct Overlays {
    /// Files of overlays, with the number of the path that rules have for them.
    pub(super) files: Vec<(Identity, usize)>,
    /// Of some layers or paths it could not be found out what is there.
    pub(super) has_unknown: bool,
}

impl Overlays {
    /// What was found; an error that does not say that nothing is there leaves it unknown.
    fn sure<T>(&mut self, found: Result<T, Errno>) -> Option<T> {
        if let Err(errno) = &found {
            self.has_unknown |= !is_absence(*errno);
        }
        found.ok()
    }
}

impl Layers {
    /// Files of overlays by which a caller sees files of `paths`.
    pub(super) fn files(&mut self, caller: Caller<'_>, paths: &[Vec<u8>]) -> Overlays {
        let mut all = Overlays::default();
        let Ok(mounts) = caller.census.mounts(caller.reader()) else {
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
                    // The part of the overlay that is mounted may be a folder of it.
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

    /// What a layer's directory is; `None` if there is none.
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

/// The folders that `paths` lie in, with the number of each path and its way from there.
fn folders_of(
    caller: Caller<'_>,
    paths: &[Vec<u8>],
    all: &mut Overlays,
) -> HashMap<Identity, Vec<(usize, Vec<u8>)>> {
    let mut identities: HashMap<&[u8], Option<Identity>> = HashMap::new();
    let mut folders: HashMap<Identity, Vec<(usize, Vec<u8>)>> = HashMap::new();
    for (number, path) in paths.iter().enumerate() {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends {
            let folder = if end == 0 { &b"/"[..] } else { &path[..end] };
            let identity = *identities.entry(folder).or_insert_with(|| {
                let found = walk::find(caller, folder, None, LookupFlags::default());
                all.sure(found).map(|place| Identity::of(&place.stat))
            });
            if let Some(identity) = identity {
                folders
                    .entry(identity)
                    .or_default()
                    .push((number, path[end..].to_vec()));
            }
        }
    }
    folders
}

/// The directories of an overlay's layers, as its options tell them. Relative ones began at the folder of whoever
/// mounted it.
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

/// Parts between colons; `\:` is one of a name.
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
