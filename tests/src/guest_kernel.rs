//! Debian's small kernels for emulated machines. They come out of packages and are kept in the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Scratch;
use crate::binary::repository;

/// The package that depends on the newest of Debian's small kernels.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// How long the lists of packages of a suite that is not this machine's are used before they are fetched again.
const LISTS_LAST: Duration = Duration::from_secs(24 * 3600);

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A kernel of one of Debian's suites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestKernel {
    /// Options for apt, which choose the suite.
    apt: Vec<String>,
    /// Such as `6.1.0-56-cloud-amd64`.
    release: String,
}

impl GuestKernel {
    /// Returns the reason why no kernel can be had here, if any.
    pub(crate) fn missing() -> Option<String> {
        let known = Command::new("apt-cache")
            .args(["depends", META_PACKAGE])
            .output();
        match known {
            Ok(output) if output.status.success() && !output.stdout.is_empty() => None,
            Ok(_) => Some(format!(
                "apt knows no {META_PACKAGE}; `apt-get update` tells it"
            )),
            Err(error) => Some(format!("there is no apt-cache: {error}")),
        }
    }

    /// The newest kernel that apt knows by the settings of this machine.
    ///
    /// # Panics
    /// If apt knows none.
    pub fn of_this_machine() -> Self {
        Self::newest(Vec::new()).unwrap_or_else(|| {
            panic!("apt knows no {META_PACKAGE}: run `apt-get update`, then this again")
        })
    }

    /// The newest kernel of a suite of Debian, such as `bullseye`, from the archive that this machine uses.
    ///
    /// # Panics
    /// If the archive does not have the suite, or the suite has no such kernel.
    pub fn of_suite(suite: &str) -> Self {
        Self::newest(apt_of(suite)).unwrap_or_else(|| panic!("{suite} has no {META_PACKAGE}"))
    }

    fn newest(apt: Vec<String>) -> Option<Self> {
        let dependencies = dependencies(&apt, META_PACKAGE);
        let mut releases = dependencies
            .iter()
            .filter_map(|name| name.strip_prefix("linux-image-"));
        let release = releases.next()?.to_owned();
        Some(Self { apt, release })
    }

    /// Returns the file with the kernel.
    ///
    /// # Panics
    /// If a package cannot be downloaded.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder().join("vmlinuz")
    }

    /// Returns the file of a module, given by its path below `kernel`, such as `fs/overlayfs/overlay.ko`. `None`: it is a
    /// part of the kernel itself.
    ///
    /// # Panics
    /// If the kernel has no such module, or a package cannot be downloaded.
    pub(crate) fn module(&self, path: &str) -> Option<PathBuf> {
        let modules = self.folder().join("modules");
        let kept = modules.join("kernel").join(path);
        let _once = once();
        if kept.is_file() {
            return Some(kept);
        }
        let packed = modules.join("kernel").join(format!("{path}.xz"));
        if packed.is_file() {
            let half = kept.with_extension("half");
            let out = fs::File::create(&half).expect("the target folder is writable");
            run(Command::new("busybox")
                .arg("xzcat")
                .arg(&packed)
                .stdout(out));
            fs::rename(&half, &kept).expect("it is beside it");
            return Some(kept);
        }
        let inside = fs::read_to_string(modules.join("modules.builtin"));
        let inside = inside.expect("packages of kernels have a list of what is built in");
        let line = format!("kernel/{path}");
        assert!(
            inside.lines().any(|found| found == line),
            "Linux {} has no module {path}",
            self.release
        );
        None
    }

    /// Returns the folder with the kernel and its modules, which this makes if it is not there.
    fn folder(&self) -> PathBuf {
        let kept = folder().join(&self.release);
        let _once = once();
        if kept.is_dir() {
            return kept;
        }
        let image = format!("linux-image-{}", self.release);
        let scratch = Scratch::new();
        unpack(&self.apt, &image, scratch.path());
        // Later packages of the image are empty, and depend on two that have the files.
        for kind in ["binary", "modules"] {
            let part = format!("linux-{kind}-{}", self.release);
            if dependencies(&self.apt, &image).contains(&part) {
                unpack(&self.apt, &part, scratch.path());
            }
        }
        let half = kept.with_extension("half");
        // What an earlier run that was stopped has left.
        let _ = fs::remove_dir_all(&half);
        fs::create_dir_all(&half).expect("the target folder is writable");
        let every = ["", "usr/"].map(|prefix| {
            let modules = format!("{prefix}lib/modules/{}", self.release);
            scratch.path().join(modules)
        });
        let modules = every.iter().find(|folder| folder.is_dir());
        let modules = modules.unwrap_or_else(|| panic!("{image} has no modules"));
        let boot = format!("boot/vmlinuz-{}", self.release);
        let images = [scratch.path().join(boot), modules.join("vmlinuz")];
        let found = images.iter().find(|file| file.is_file());
        let found = found.unwrap_or_else(|| panic!("{image} has no kernel"));
        run(Command::new("mv").arg(found).arg(half.join("vmlinuz")));
        run(Command::new("mv").arg(modules).arg(half.join("modules")));
        fs::rename(&half, &kept).expect("it is beside it");
        kept
    }
}

/// Returns the kernel's image, and the folder with its modules for virtio.
///
/// # Panics
/// If the kernel's package cannot be downloaded.
pub fn kernel_with_modules() -> (PathBuf, PathBuf) {
    const DRIVERS: [&str; 2] = ["kernel/drivers/virtio", "kernel/drivers/char"];
    let kernel = GuestKernel::of_this_machine();
    let all = kernel.folder();
    let kept = folder().join(format!("modules-{}", kernel.release));
    {
        let _once = once();
        if !kept.is_dir() {
            let half = kept.with_extension("half");
            for drivers in DRIVERS {
                let target = half.join(drivers);
                fs::create_dir_all(&target).expect("the target folder is writable");
                run(Command::new("cp")
                    .arg("-r")
                    .arg(all.join("modules").join(drivers).join("."))
                    .arg(target));
            }
            fs::rename(&half, &kept).expect("it is beside it");
        }
    }
    (kernel.image(), kept)
}

/// Returns a file of a package of this machine's suite, downloaded once and kept in the target folder.
pub(crate) fn packaged(package: &str, path: &str) -> PathBuf {
    let folder = folder();
    let inside = Path::new(path.trim_start_matches('/'));
    let kept = folder.join(inside.file_name().expect("it is the path of a file"));
    let _once = once();
    if kept.is_file() {
        return kept;
    }
    let scratch = Scratch::new();
    unpack(&[], package, scratch.path());
    fs::create_dir_all(&folder).expect("the target folder is writable");
    // Renamed when complete, so that a test that is stopped here leaves no partial file.
    let half = kept.with_extension("half");
    fs::copy(scratch.path().join(inside), &half)
        .and_then(|_| fs::rename(&half, &kept))
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", kept.display()));
    kept
}

/// Runs a command to its end.
///
/// # Panics
/// If it fails.
pub(crate) fn run(command: &mut Command) {
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}; run `./x test-guest`"));
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?} failed: {text}");
}

fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository().join("target"), PathBuf::from);
    target.join("guest")
}

fn once() -> MutexGuard<'static, ()> {
    static ONCE: Mutex<()> = Mutex::new(());
    // A test that panicked while it held the lock has left nothing incomplete.
    ONCE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unpacks a package into a folder.
fn unpack(apt: &[String], package: &str, folder: &Path) {
    let download = Scratch::new();
    run(Command::new("apt-get")
        .args(apt)
        .args(["download", "--quiet", "--quiet", package])
        .current_dir(download.path()));
    let archive = fs::read_dir(download.path())
        .expect("it is our folder")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .expect("apt-get has just put the package here");
    run(Command::new("dpkg-deb").arg("-x").arg(archive).arg(folder));
}

/// Returns the names of the packages that a package depends on.
fn dependencies(apt: &[String], package: &str) -> Vec<String> {
    let depends = Command::new("apt-cache")
        .args(apt)
        .args(["depends", package])
        .output()
        .expect("apt-cache is part of Debian");
    let text = String::from_utf8_lossy(&depends.stdout);
    let names = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::to_owned).collect()
}

/// Returns options by which apt knows a suite alone, without a change of this machine's settings.
fn apt_of(suite: &str) -> Vec<String> {
    let state = folder().join(format!("apt-{suite}"));
    let (sources, lists) = (state.join("sources.list"), state.join("lists"));
    let options = [
        format!("Dir::Etc::sourcelist={}", sources.display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={}", lists.display()),
        format!("Dir::Cache={}", state.join("cache").display()),
        // It may not read the target folder.
        "APT::Sandbox::User=".to_owned(),
    ];
    let options = options
        .into_iter()
        .flat_map(|option| ["-o".to_owned(), option]);
    let options: Vec<_> = options.collect();
    let _once = once();
    let read = state.join("read");
    let age = read.metadata().and_then(|file| file.modified());
    let is_fresh = age.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < LISTS_LAST));
    if !is_fresh {
        fs::create_dir_all(lists.join("partial")).expect("the target folder is writable");
        let archive = archive();
        let line = format!("deb [signed-by={KEYRING}] {archive} {suite} main\n");
        fs::write(&sources, line).expect("the target folder is writable");
        run(Command::new("apt-get").args(&options).arg("update"));
        fs::write(&read, "").expect("the target folder is writable");
    }
    options
}

/// Returns the address of the archive that this machine uses.
fn archive() -> String {
    let output = Command::new("apt-get")
        .args([
            "indextargets",
            "--format",
            "$(LABEL)|$(COMPONENT)|$(REPO_URI)",
        ])
        .arg("Created-By: Packages")
        .output()
        .expect("apt-get is part of Debian");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut archives = text
        .lines()
        .filter_map(|line| line.strip_prefix("Debian|main|"));
    let first = archives.next();
    first
        .expect("apt has a source of Debian's packages")
        .to_owned()
}
