//! The files of a machine: this program, what it is linked to, the container's files, rules and policy.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek};
use std::path::{Path, PathBuf};

use oci::vm::{Archive, Kernel};
use oci::{Note, Store};
use serde_json::Value;

use super::{INITRD, cannot};
use crate::exit::Exit;
use crate::failure::Failure;

/// Where things are in the machine.
pub(super) const ROOT: &str = "/rootfs";
pub(super) const BUNDLE: &str = "/bundle";
pub(super) const WORDS: &str = "/words.json";
pub(super) const MODULES: &str = "/modules";
pub(super) const HOST_NAME: &str = "/hostname";
/// Memory beside that for the files, which lie in it twice while they are unpacked.
const MEMORY_MIB: u64 = 256;
const FOLDERS: [&str; 9] = [
    "/usr/lib",
    "/usr/lib64",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/tmp",
    "/old",
    ROOT,
];
/// Parts of a configuration that are not carried out in a machine, as JSON pointers.
const LEFT_OUT: [&str; 11] = [
    "/hooks",
    "/process/apparmorProfile",
    "/process/oomScoreAdj",
    "/process/selinuxLabel",
    "/linux/cgroupsPath",
    "/linux/devices",
    "/linux/gidMappings",
    "/linux/intelRdt",
    "/linux/resources",
    "/linux/seccomp",
    "/linux/uidMappings",
];

/// Refuses what a machine cannot give.
pub(super) fn check(config: &Value, id: &str) -> Result<(), Failure> {
    let folder = bound(config).find(|(source, _)| !source.is_file());
    let why = if let Some((source, _)) = folder {
        let source = source.display();
        format!("{source} is mounted into it, and another machine has no folders of this one")
    } else if config["process"]["terminal"] == true {
        "it wants a terminal".to_owned()
    } else {
        return Ok(());
    };
    let message = format!("cannot put container {id} into a machine: {why}");
    Err(Failure::new(Exit::Unsupported, message).help("use another runtime, or leave that out"))
}

/// Files of this machine that the container is to see: where they are, and where it sees them.
fn bound(config: &Value) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let mounts = config["mounts"].as_array().into_iter().flatten();
    mounts.filter_map(|mount| {
        let mut options = mount["options"].as_array().into_iter().flatten();
        let is_bound =
            mount["type"] == "bind" || options.any(|option| option == "bind" || option == "rbind");
        let path = |name: &str| mount[name].as_str().map(PathBuf::from);
        path("source").zip(path("destination")).filter(|_| is_bound)
    })
}

/// Writes the initial RAM disk; gives the machine's memory in MiB. `words`: the command line that watches in
/// there, and the files that it needs.
pub(super) fn pack(
    store: &Store,
    note: &Note,
    config: &Value,
    kernel: &Kernel,
    words: Option<(Vec<String>, Vec<PathBuf>)>,
) -> Result<u64, Failure> {
    let write = || -> io::Result<u64> {
        let mut archive = Archive::new(BufWriter::new(File::create(store.file(INITRD))?));
        for folder in FOLDERS {
            archive.folder(Path::new(folder))?;
        }
        archive.link(Path::new("/lib"), Path::new("usr/lib"))?;
        archive.link(Path::new("/lib64"), Path::new("usr/lib64"))?;
        programs(&mut archive)?;
        for module in kernel.modules() {
            let target = Path::new(MODULES).join(module.file_name().unwrap_or_default());
            archive.bytes(&target, &fs::read(module)?)?;
        }
        let (words, files) =
            words.map_or((None, Vec::new()), |(words, files)| (Some(words), files));
        for file in files {
            archive.bytes(&file, &fs::read(&file)?)?;
        }
        archive.bytes(Path::new(WORDS), &serde_json::to_vec(&words)?)?;
        // Alerts say where they come from.
        let host = rustix::system::uname();
        archive.bytes(Path::new(HOST_NAME), host.nodename().to_bytes())?;
        let file = Path::new(BUNDLE).join("config.json");
        archive.bytes(&file, config.to_string().as_bytes())?;
        let root = config["root"]["path"].as_str().unwrap_or("rootfs");
        archive.tree(&note.bundle.join(root), Path::new(ROOT))?;
        for (source, destination) in bound(config) {
            let target = destination.strip_prefix("/").unwrap_or(&destination);
            archive.tree(&fs::canonicalize(&source)?, &Path::new(ROOT).join(target))?;
        }
        archive.end()
    };
    let size = write().map_err(cannot("pack the container's files"))?;
    tell(store, config)?;
    Ok(MEMORY_MIB + 3 * (size >> 20))
}

/// Notes what is not carried out.
fn tell(store: &Store, config: &Value) -> Result<(), Failure> {
    let is_there = |part: &&&str| config.pointer(part).is_some_and(|value| !value.is_null());
    let left_out = LEFT_OUT.iter().filter(is_there);
    let lines = left_out.map(|part| {
        let part = part.trim_start_matches('/').replace('/', ".");
        format!("{part} is not carried out in a machine\n")
    });
    fs::write(store.log(), lines.collect::<String>()).map_err(cannot("note what is left out"))
}

fn programs(archive: &mut Archive<impl io::Write>) -> io::Result<()> {
    archive.bytes(Path::new("/init"), &loaded_part_of_this()?)?;
    for library in libraries()? {
        archive.bytes(&library, &fs::read(&library)?)?;
        let name = library.file_name().unwrap_or_default();
        // The loader is asked for by a path of its own, which may be a link here.
        if name.to_string_lossy().starts_with("ld-linux") && !library.starts_with("/usr/lib64") {
            archive.link(&Path::new("/usr/lib64").join(name), &library)?;
        }
    }
    Ok(())
}

/// This program without what only a debugger reads: everything behind the last part that is loaded.
fn loaded_part_of_this() -> io::Result<Vec<u8>> {
    let mut file = File::open("/proc/self/exe")?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    // e_phoff, e_phentsize, e_phnum of elf(5).
    let (table, size, count) = (word(32), half(54), half(56));
    let mut entries = vec![0; usize::from(size) * usize::from(count)];
    file.seek(io::SeekFrom::Start(table))?;
    file.read_exact(&mut entries)?;
    let ends = entries.chunks_exact(usize::from(size).max(1)).map(|entry| {
        let word = |at: usize| {
            let bytes = entry
                .get(at..at + 8)
                .and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        // p_offset and p_filesz.
        word(8).saturating_add(word(32))
    });
    let end = ends.max().unwrap_or(0);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(end).read_to_end(&mut bytes)?;
    // e_shoff, e_shentsize, e_shnum and e_shstrndx: there are no sections any more.
    for range in [40..48, 58..60, 60..62, 62..64] {
        if let Some(place) = bytes.get_mut(range) {
            place.fill(0);
        }
    }
    Ok(bytes)
}

/// Libraries that this program has loaded, and their loader.
fn libraries() -> io::Result<BTreeSet<PathBuf>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let own = fs::read_link("/proc/self/exe")?;
    let paths = maps
        .lines()
        .filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
    let is_library = |path: &PathBuf| *path != own && path.to_string_lossy().contains(".so");
    Ok(paths.filter(is_library).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn this_program_without_its_sections_still_begins_like_a_program() {
        let bytes = loaded_part_of_this().unwrap();
        assert!(bytes.starts_with(b"\x7fELF") && bytes[40..48] == [0; 8]);
        let whole = fs::metadata("/proc/self/exe").unwrap().len();
        assert!((bytes.len() as u64) <= whole);
        assert!(!libraries().unwrap().is_empty() || cfg!(target_feature = "crt-static"));
    }

    #[test]
    fn files_are_taken_along_and_folders_refused() {
        let mount = |source: &str| {
            json!({"mounts": [{"source": source, "destination": "/x", "options": ["rbind"]},
                {"source": "proc", "type": "proc", "destination": "/proc"}]})
        };
        assert!(check(&mount("/proc/self/exe"), "a").is_ok());
        let failure = check(&mount("/proc"), "a").unwrap_err();
        assert!(failure.render().contains("/proc is mounted into it"));
        let terminal = json!({"process": {"terminal": true}});
        assert!(
            check(&terminal, "a")
                .unwrap_err()
                .render()
                .contains("a terminal")
        );
    }
}
