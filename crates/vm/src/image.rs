//! The files of a machine (this program and its libraries) and of a container (its root, rules and
//! policy). Both are in the initial RAM disk, unless the machine was ready before the container;
//! then the container's files follow over the connection.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek};
use std::path::{Path, PathBuf};

use agent::spec::AgentSpec;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use runtime::{Note, Store};
use serde_json::{Value, json};

use super::{INITRD, cannot};
use crate::{Archive, Kernel};

/// Root of the container in the machine.
pub(super) const ROOT: &str = "/rootfs";
pub(super) const BUNDLE: &str = "/bundle";
pub(super) const AGENT: &str = "/agent";
pub(super) const MODULES: &str = "/modules";
pub(super) const HOST_NAME: &str = "/hostname";
/// Memory in MiB in addition to that for the files, which exist twice while they are unpacked.
const MEMORY_MIB: u64 = 256;
const FOLDERS: [&str; 8] = [
    "/usr/lib",
    "/usr/lib64",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/tmp",
    "/old",
];
/// Mount point at which callers mount a shared directory of the host. In a machine of its own, a
/// container has a private one there.
const SHARED_MEMORY: &str = "/dev/shm";
/// Directory of bind-mounted files in the machine, by index in `mounts`.
const BOUND: &str = "/bound";

/// Refuses configurations that a machine cannot provide.
pub(super) fn check(config: &Value, id: &str) -> Result<(), Failure> {
    let shared = bound(config).find(|bound| bound.is_shared());
    let why = if let Some(bound) = shared {
        let source = bound.source.display();
        format!(
            "{source} is a writable mount, and a virtual machine has no access to folders of the host"
        )
    } else if let Some(why) = super::fields::refusal(config) {
        why
    } else if let Err(why) = super::profile::compile(&config["linux"]["seccomp"]) {
        format!("linux.seccomp: {why}")
    } else {
        return Ok(());
    };
    let message = format!("cannot run container {id} in a virtual machine: {why}");
    Err(Failure::new(Exit::Unsupported, message).help(
        "mount folders read-only to have them copied, use another runtime, or leave that out",
    ))
}

/// A file or directory of the host that is visible in the container.
pub(super) struct BindMount {
    source: PathBuf,
    destination: PathBuf,
    is_read_only: bool,
}

impl BindMount {
    pub(super) fn of(mount: &Value) -> Option<Self> {
        let options = || mount["options"].as_array().into_iter().flatten();
        let has = |name: &str| options().any(|option| option == name);
        let is_bound = mount["type"] == "bind" || has("bind") || has("rbind");
        let path = |name: &str| mount[name].as_str().map(PathBuf::from);
        Some(Self {
            source: path("source").filter(|_| is_bound)?,
            destination: path("destination")?,
            is_read_only: has("ro") || has("rro"),
        })
    }

    /// Returns true if the host is supposed to see what the container writes there.
    fn is_shared(&self) -> bool {
        !(self.is_memory() || self.is_read_only || self.source.is_file())
    }

    fn is_memory(&self) -> bool {
        self.destination == Path::new(SHARED_MEMORY)
    }
}

fn bound(config: &Value) -> impl Iterator<Item = BindMount> {
    let mounts = config["mounts"].as_array().into_iter().flatten();
    mounts.filter_map(BindMount::of)
}

/// Returns the configuration for use inside the machine.
fn inner(config: &Value) -> Value {
    let mut config = config.clone();
    let mounts = config["mounts"].as_array_mut().into_iter().flatten();
    for (at, mount) in mounts.enumerate() {
        match BindMount::of(mount) {
            None => {}
            Some(bound) if bound.is_memory() => {
                *mount = json!({"destination": SHARED_MEMORY, "type": "tmpfs", "source": "shm",
                    "options": ["nosuid", "noexec", "nodev", "mode=1777"]});
            }
            Some(_) => {
                mount["type"] = "bind".into();
                mount["source"] = place(at).display().to_string().into();
            }
        }
    }
    config
}

/// Returns the directory of a mount's files in the machine.
fn place(at: usize) -> PathBuf {
    Path::new(BOUND).join(at.to_string())
}

/// An archive of a container's files, to which a machine's own can be added.
pub(super) struct PackedImage {
    archive: Archive<BufWriter<File>>,
    /// Memory limit of the container in MiB.
    container_mib: u64,
}

/// Packs a container's files. `agent` is the specification of the guest's agent with its files;
/// without it nothing is watched.
pub(super) fn pack(
    store: &Store,
    note: &Note,
    config: &Value,
    agent: Option<(AgentSpec, Vec<PathBuf>)>,
) -> Result<PackedImage, Failure> {
    let container_mib = super::groups::memory_mib(config);
    let write = || -> io::Result<PackedImage> {
        let mut archive = Archive::new(BufWriter::new(File::create(store.file(INITRD))?));
        skeleton(&mut archive)?;
        let (spec, files) = match agent {
            Some((spec, files)) => (spec.encode(), files),
            // Without a specification, the empty file marks that the container has arrived.
            None => (Vec::new(), Vec::new()),
        };
        for file in files {
            archive.bytes(&file, &fs::read(&file)?)?;
        }
        archive.bytes(Path::new(AGENT), &spec)?;
        let file = Path::new(BUNDLE).join("config.json");
        archive.bytes(&file, inner(config).to_string().as_bytes())?;
        let root = config["root"]["path"].as_str().unwrap_or("rootfs");
        archive.tree(&note.bundle.join(root), Path::new(ROOT))?;
        let mounts = config["mounts"].as_array().into_iter().flatten();
        for (at, mount) in mounts.enumerate() {
            if let Some(bound) = BindMount::of(mount).filter(|bound| !bound.is_memory()) {
                archive.tree(&fs::canonicalize(&bound.source)?, &place(at))?;
            }
        }
        Ok(PackedImage {
            archive,
            container_mib,
        })
    };
    let packed = write().map_err(cannot("pack the container's files"))?;
    note_differences(store, config)?;
    Ok(packed)
}

impl PackedImage {
    /// Returns the memory in MiB that a machine needs for these files, in addition to its own.
    pub(super) fn memory_mib(&self) -> u64 {
        self.container_mib + 3 * (self.archive.size() >> 20)
    }

    /// Completes the archive.
    pub(super) fn end(self) -> Result<(), Failure> {
        self.archive
            .end()
            .map(drop)
            .map_err(cannot("pack the container's files"))
    }

    /// Completes the archive with the files of a machine. Returns the required memory in MiB.
    pub(super) fn end_with_machine(mut self, kernel: &Kernel) -> Result<u64, Failure> {
        let container_mib = self.container_mib;
        let write = || {
            own(&mut self.archive, kernel)?;
            self.archive.end()
        };
        let size = write().map_err(cannot("pack the machine's files"))?;
        Ok(MEMORY_MIB + container_mib + 3 * (size >> 20))
    }
}

/// Writes the initial RAM disk of a warm machine. Returns the required memory in MiB.
pub(super) fn pack_machine(file: File, kernel: &Kernel) -> Result<u64, Failure> {
    let write = || {
        let mut archive = Archive::new(BufWriter::new(file));
        skeleton(&mut archive)?;
        own(&mut archive, kernel)?;
        archive.end()
    };
    let size = write().map_err(cannot("pack the machine's files"))?;
    Ok(MEMORY_MIB + 3 * (size >> 20))
}

/// Adds the directories and links that must come before their contents.
fn skeleton(archive: &mut Archive<impl io::Write>) -> io::Result<()> {
    for folder in FOLDERS {
        archive.folder(Path::new(folder))?;
    }
    archive.link(Path::new("/lib"), Path::new("usr/lib"))?;
    archive.link(Path::new("/lib64"), Path::new("usr/lib64"))
}

/// Adds the files that every machine needs.
fn own(archive: &mut Archive<impl io::Write>, kernel: &Kernel) -> io::Result<()> {
    programs(archive)?;
    for module in kernel.modules() {
        let name = module.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let target = Path::new(MODULES).join(name);
        archive.bytes(&target, &fs::read(module)?)?;
    }
    // Alerts contain the host's name.
    let host = rustix::system::uname();
    archive.bytes(Path::new(HOST_NAME), host.nodename().to_bytes())
}

/// Writes the parts that are ignored, and the mounts that are copies, to the log.
fn note_differences(store: &Store, config: &Value) -> Result<(), Failure> {
    let bound = bound(config).filter(|bound| !bound.is_memory());
    let copies = bound.map(|bound| {
        format!(
            "{} is a copy in the virtual machine",
            bound.source.display()
        )
    });
    let lines: String = super::fields::warnings(config)
        .into_iter()
        .chain(copies)
        .map(|line| line + "\n")
        .collect();
    fs::write(store.log(), lines).map_err(cannot("note what is left out"))
}

fn programs(archive: &mut Archive<impl io::Write>) -> io::Result<()> {
    archive.bytes(Path::new("/init"), &loaded_part_of_this()?)?;
    for library in libraries()? {
        archive.bytes(&library, &fs::read(&library)?)?;
        let name = library.file_name().unwrap_or_default();
        // The loader is requested by a path of its own, which may be a link on the host.
        if name.to_string_lossy().starts_with("ld-linux") && !library.starts_with("/usr/lib64") {
            archive.link(&Path::new("/usr/lib64").join(name), &library)?;
        }
    }
    Ok(())
}

/// Returns this program without debug information: everything behind the last loaded segment is cut
/// off.
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
    // e_shoff, e_shentsize, e_shnum and e_shstrndx: the sections are gone.
    for range in [40..48, 58..60, 60..62, 62..64] {
        if let Some(place) = bytes.get_mut(range) {
            place.fill(0);
        }
    }
    Ok(bytes)
}

/// Returns the libraries that this program has loaded, and their loader.
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
    use super::*;

    #[test]
    fn this_program_without_its_sections_still_begins_like_a_program() {
        let bytes = loaded_part_of_this().unwrap();
        assert!(bytes.starts_with(b"\x7fELF") && bytes[40..48] == [0; 8]);
        let whole = fs::metadata("/proc/self/exe").unwrap().len();
        assert!((bytes.len() as u64) <= whole);
        assert!(!libraries().unwrap().is_empty() || cfg!(target_feature = "crt-static"));
    }

    fn config(source: &str, destination: &str, options: &[&str]) -> Value {
        json!({"mounts": [{"source": source, "destination": destination, "options": options},
            {"source": "proc", "type": "proc", "destination": "/proc"}]})
    }

    #[test]
    fn files_are_taken_along_and_folders_only_to_be_read() {
        assert!(check(&config("/proc/self/exe", "/x", &["rbind"]), "a").is_ok());
        assert!(check(&config("/proc", "/x", &["rbind", "ro"]), "a").is_ok());
        let failure = check(&config("/proc", "/x", &["rbind"]), "a").unwrap_err();
        assert!(failure.render().contains("/proc is a writable mount"));
        let terminal = json!({"process": {"terminal": true}});
        assert!(
            check(&terminal, "a")
                .unwrap_err()
                .render()
                .contains("terminals are not supported")
        );
    }

    #[test]
    fn shared_memory_is_the_machines_own() {
        let config = config("/proc", "/dev/shm", &["bind"]);
        assert!(check(&config, "a").is_ok());
        let inner = inner(&config);
        assert_eq!(inner["mounts"][0]["type"], "tmpfs");
        assert_eq!(inner["mounts"][1], config["mounts"][1]);
        let config = self::config("/proc/self/exe", "/x", &["rbind", "ro"]);
        let bound = &self::inner(&config)["mounts"][0];
        assert_eq!(
            (&bound["type"], &bound["source"]),
            (&json!("bind"), &json!("/bound/0"))
        );
        assert_eq!(bound["options"], json!(["rbind", "ro"]));
    }
}
