//! The kernel of a machine, and the modules that the connection to it requires.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Directory of distribution kernels.
const BOOT: &str = "/boot";
/// Directory of modules, with one subdirectory per kernel release.
const MODULES: &str = "/lib/modules";
/// Modules that the connection requires. A missing one is built into the kernel.
const NEEDED: [&str; 6] = [
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "drivers/char/virtio_console",
];
/// File name extensions of modules.
const ENDINGS: [&str; 4] = ["ko", "ko.xz", "ko.zst", "ko.gz"];

/// A kernel image and the location of its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Path of the image.
    pub image: PathBuf,
    /// Release, as `uname -r` prints it.
    pub release: String,
    modules: PathBuf,
}

/// No kernel can be used.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No kernel is installed.
    #[error("cannot find a kernel for virtual machines: no {BOOT}/vmlinuz-*cloud*")]
    None,
    /// The named image cannot be used.
    #[error("cannot use the kernel {}", .path.display())]
    Unusable {
        /// Path of the image.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

impl Kernel {
    /// Returns the kernel of the named image, or else the newest installed one of Debian's cloud
    /// kernels. `modules` is the directory with `kernel/drivers`, if it is not the default one.
    ///
    /// # Errors
    ///
    /// There is no kernel, or the image is not Linux.
    pub fn find(image: Option<&Path>, modules: Option<&Path>) -> Result<Self, KernelError> {
        let image = image
            .map(Path::to_owned)
            .or_else(installed)
            .ok_or(KernelError::None)?;
        let release = release(&image).map_err(|cause| {
            let path = image.clone();
            KernelError::Unusable { path, cause }
        })?;
        let usual = || Path::new(MODULES).join(&release);
        Ok(Self {
            modules: modules.map_or_else(usual, Path::to_owned),
            image,
            release,
        })
    }

    /// Returns the files of the modules to load.
    pub fn modules(&self) -> Vec<PathBuf> {
        let file = |name: &&str| {
            let path = self.modules.join("kernel").join(name);
            let mut files = ENDINGS.iter().map(|ending| path.with_extension(ending));
            files.find(|file| file.is_file())
        };
        NEEDED.iter().filter_map(file).collect()
    }
}

fn installed() -> Option<PathBuf> {
    // Without the directory no kernel is installed.
    let entries = fs::read_dir(BOOT).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.path());
    let is_small = |path: &PathBuf| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("vmlinuz-") && name.contains("cloud"))
    };
    names.filter(is_small).max_by_key(|path| version(path))
}

/// Returns the numbers in a file name, so that 6.10 sorts after 6.9.
fn version(path: &Path) -> Vec<u64> {
    let name = path.to_string_lossy();
    let numbers = name.split(|letter: char| !letter.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Reads the release in an image's header (Documentation/arch/x86/boot.rst).
fn release(image: &Path) -> io::Result<String> {
    const MAGIC: u64 = 0x202;
    const BASE: u64 = 0x200;
    let mut file = File::open(image)?;
    file.seek(SeekFrom::Start(MAGIC))?;
    let mut head = [0; 14];
    let no_kernel = || io::Error::other("it is not a Linux image for x86");
    file.read_exact(&mut head).map_err(|_short| no_kernel())?;
    let [b'H', b'd', b'r', b'S', .., low, high] = head else {
        return Err(no_kernel());
    };
    let offset = u64::from(u16::from_le_bytes([low, high]));
    file.seek(SeekFrom::Start(BASE + offset))?;
    let mut text = Vec::new();
    file.take(256).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let word = text
        .split([' ', '\0'])
        .next()
        .filter(|word| !word.is_empty());
    word.map(str::to_owned).ok_or_else(no_kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(folder: &Path) -> PathBuf {
        let mut bytes = vec![0; 0x400];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&[0x80, 0x01]);
        let text = b"6.1.0-9-cloud-amd64 (somebody) #1\0";
        bytes[0x380..0x380 + text.len()].copy_from_slice(text);
        let path = folder.join("vmlinuz");
        fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn an_image_says_its_release_and_its_modules_come_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path());
        let modules = folder.path().join("modules");
        for name in [
            "char/virtio_console.ko.xz",
            "virtio/virtio_pci.ko",
            "virtio/virtio.ko",
        ] {
            let file = modules.join("kernel/drivers").join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
        let kernel = Kernel::find(Some(&image), Some(&modules)).unwrap();
        assert_eq!(kernel.release, "6.1.0-9-cloud-amd64");
        let names: Vec<_> = kernel.modules();
        let names = names
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap());
        let expected = ["virtio.ko", "virtio_pci.ko", "virtio_console.ko.xz"];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        let usual = Kernel::find(Some(&image), None).unwrap();
        assert_eq!(usual.modules, Path::new("/lib/modules/6.1.0-9-cloud-amd64"));
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        for content in [&b"short"[..], &[7; 0x400]] {
            fs::write(&path, content).unwrap();
            let error = Kernel::find(Some(&path), None).unwrap_err();
            assert!(
                error.to_string().starts_with("cannot use the kernel"),
                "{error}"
            );
        }
        assert!(Kernel::find(Some(Path::new("/no/such")), None).is_err());
    }

    #[test]
    fn versions_are_numbers() {
        let version = |name: &str| version(Path::new(name));
        assert!(version("vmlinuz-6.10.0-1-cloud") > version("vmlinuz-6.9.0-20-cloud"));
    }
}
