//! Another kernel, of this architecture or arm64: Debian's cloud kernel in an emulated machine, with Yama.
//!
//! The machine has no disk. Its root file system is that of the containers of these tests, packed into an
//! initial RAM disk together with a script. The script's output comes back over a serial port. Nothing needs
//! privileges or hardware support on the host.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::arm64;
use crate::binary::{program, which};
use crate::guest_kernel::{GuestKernel, packaged, run};
use crate::rootfs::{Rootfs, libraries_of};
use crate::{Identity, Limited, Scratch};

/// Time limit of a machine. On an idle host it starts in about four seconds, and the demo takes a minute and a
/// half in it. A busy host gives it a fraction of a processor.
const LIMIT: Duration = Duration::from_secs(900);

/// Memory for the root file system, twice (packed and unpacked), and for the programs.
const MEMORY: &str = "1024M";

/// The first programs. `YAMA`, `LIMIT`, `PREFIX` and `OUTPUT` are replaced.
const INIT: &str = r#"#!/usr/bin/sh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin HOME=/root TERM=dumb
# pivot_root(2) does not work on the initial root; a mount over it can be exchanged.
busybox mount --bind / /old && cd /old && busybox mount --move . / && exec busybox chroot . /init2
"#;
const INIT2: &str = r#"#!/usr/bin/sh
cd /
busybox mount -t proc proc /proc
read boot idle < /proc/uptime
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs devtmpfs /dev
busybox mkdir -p /dev/pts /dev/shm
busybox mount -t devpts devpts /dev/pts
busybox mount -t tmpfs -o mode=1777 tmpfs /dev/shm
busybox ifconfig lo up
busybox stty raw -F /dev/OUTPUT
busybox hostname guest
echo YAMA > /proc/sys/kernel/yama/ptrace_scope
timeout LIMIT PREFIX sh /script >> /run/stdout 2>> /run/stderr < /dev/null
status=$?
sizes=$(busybox wc -c < /run/stdout)" "$(busybox wc -c < /run/stderr)
{ echo "$boot $status $sizes"; busybox cat /run/stdout /run/stderr; } > /dev/OUTPUT
busybox reboot -f
"#;

/// What is emulated.
#[derive(Clone, Copy, Debug)]
enum Machine {
    Amd64,
    Arm64,
}

impl Machine {
    /// Returns the emulator's command line up to the kernel. The console and the script's output are written to files.
    fn command(self, memory: &str, console: &Path, output: &Path) -> Command {
        let (program, platform, second): (_, &[&str], _) = match self {
            Self::Amd64 => ("qemu-system-x86_64", &[], "isa-serial,chardev=output"),
            Self::Arm64 => (
                "qemu-system-aarch64",
                // Signed return addresses by the emulator's own function: that of the architecture takes most of the time.
                &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
                "pci-serial,chardev=output",
            ),
        };
        let mut machine = Command::new(program);
        machine.args(platform).args(["-accel", "tcg", "-m", memory]);
        machine.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        let console = format!("file:{}", console.display());
        let output = format!("file,id=output,path={}", output.display());
        machine.args(["-serial", &console, "-chardev", &output, "-device", second]);
        machine
    }

    /// Returns the devices of the console and of the output, below `/dev`.
    fn devices(self) -> (&'static str, &'static str) {
        match self {
            Self::Amd64 => ("ttyS0", "ttyS1"),
            Self::Arm64 => ("ttyAMA0", "ttyS0"),
        }
    }
}

/// A machine that can be started.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    image: PathBuf,
    /// Kernel that modules are taken from.
    kernel: Option<GuestKernel>,
    rootfs: Arc<Rootfs>,
    program: PathBuf,
    files: Vec<(PathBuf, String)>,
    options: String,
    memory: String,
    counts: bool,
    limit: Duration,
    scratch: Scratch,
}

/// Result of a script.
#[derive(Debug)]
pub struct GuestRun {
    /// Time from the start of the kernel to the first program, by the guest's clock.
    pub boot: Duration,
    /// The script's exit status.
    pub code: i32,
    /// Standard output of the script.
    pub stdout: String,
    /// Standard error of the script.
    pub stderr: String,
}

impl Guest {
    /// Returns the reason why there can be no machine here, if any. A kernel that cannot be downloaded although
    /// apt knows it is an error.
    pub fn missing() -> Option<String> {
        if !crate::installed("qemu-system-x86_64") {
            return Some("there is no qemu-system-x86_64; `./x test-guest` installs it".to_owned());
        }
        GuestKernel::missing()
    }

    /// Creates a guest with the program under test at `/usr/local/bin/tollgate`.
    ///
    /// # Panics
    /// If apt knows no kernel.
    pub fn new() -> Self {
        Self::with_kernel(GuestKernel::of_this_machine())
    }

    /// Creates a guest with another kernel.
    pub fn with_kernel(kernel: GuestKernel) -> Self {
        let image = kernel.image();
        let rootfs = Rootfs::shared();
        let mut guest = Self::of(Machine::Amd64, image, rootfs, "strip", &program());
        guest.kernel = Some(kernel);
        guest
    }

    /// Creates a guest of arm64 with the kernel that `packaging/arm64.sh kernel` has by this name, and the program that
    /// `TOLLGATE_ARM64_BIN` names at `/usr/local/bin/tollgate`. Its other programs are busybox and apparmor_parser.
    ///
    /// # Panics
    /// If Debian's packages for arm64 cannot be downloaded.
    pub fn arm64(kernel: &str) -> Self {
        let busybox = arm64::packaged("busybox-static", "bin/busybox");
        let library = "lib/aarch64-linux-gnu/libc.so.6";
        let loader = "lib/aarch64-linux-gnu/ld-linux-aarch64.so.1";
        Self::of(
            Machine::Arm64,
            arm64::kernel(kernel),
            Arc::new(Rootfs::of_busybox(&busybox)),
            arm64::STRIP,
            &arm64::program(),
        )
        .file(
            &arm64::packaged("apparmor", "sbin/apparmor_parser"),
            "/usr/sbin/apparmor_parser",
        )
        .file(&arm64::packaged("libc6", library), "/usr/lib/libc.so.6")
        .file(
            &arm64::packaged("libc6", loader),
            "/usr/lib/ld-linux-aarch64.so.1",
        )
    }

    fn of(
        machine: Machine,
        image: PathBuf,
        rootfs: Arc<Rootfs>,
        strip: &str,
        program: &Path,
    ) -> Self {
        let scratch = Scratch::new();
        let stripped = scratch.path().join("tollgate");
        // Debug information is most of the file, and the machine would have to unpack it.
        run(Command::new(strip).arg("-o").arg(&stripped).arg(program));
        Self {
            machine,
            image,
            kernel: None,
            rootfs,
            program: stripped,
            files: Vec::new(),
            options: String::new(),
            memory: MEMORY.to_owned(),
            counts: false,
            limit: LIMIT,
            scratch,
        }
    }

    /// Returns the reason why there can be no machine of arm64 here, if any.
    pub fn missing_arm64() -> Option<String> {
        arm64::missing()
    }

    /// Adds a file of the host at an absolute path of the guest.
    pub fn file(mut self, from: &Path, to: &str) -> Self {
        self.files.push((from.to_owned(), to.to_owned()));
        self
    }

    /// Adds words to the kernel's command line.
    pub fn option(mut self, words: &str) -> Self {
        self.options.push(' ');
        self.options.push_str(words);
        self
    }

    /// Sets the size of the memory, as the emulator takes it.
    pub fn memory(mut self, size: &str) -> Self {
        size.clone_into(&mut self.memory);
        self
    }

    /// Sets the time limit on the host, for slow scripts.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Uses a clock that moves by a nanosecond per instruction: programs then measure numbers of instructions,
    /// whatever else the host does.
    pub fn counting_instructions(mut self) -> Self {
        self.counts = true;
        self
    }

    /// Adds a program of a Debian package that may not be installed on the host.
    ///
    /// # Panics
    /// If the package cannot be downloaded.
    pub fn packaged(self, package: &str, path: &str) -> Self {
        let file = packaged(package, path);
        self.file(&file, path)
    }

    /// Adds a module of the kernel, given by its path below `/lib/modules/RELEASE/kernel`, in the root folder. A kernel
    /// that has it built in gets no file.
    ///
    /// # Panics
    /// If the kernel has no such module, or its package cannot be downloaded.
    pub fn module(self, path: &str) -> Self {
        let kernel = self.kernel.as_ref();
        let kernel = kernel.expect("modules of arm64 are not unpacked");
        let Some(file) = kernel.module(path) else {
            return self;
        };
        let (_, name) = path.rsplit_once('/').expect("modules are in folders");
        self.file(&file, &format!("/{name}"))
    }

    /// Adds a program of the host in `/usr/bin`, and its libraries.
    ///
    /// # Panics
    /// If the host does not have it.
    pub fn program(self, name: &str) -> Self {
        self.own_program(&which(name), &format!("/usr/bin/{name}"))
    }

    /// Adds any program of the host, and its libraries.
    pub fn own_program(mut self, program: &Path, to: &str) -> Self {
        for library in libraries_of(&[program.to_owned()]) {
            let place = library.display().to_string();
            self = self.file(&library, &place);
        }
        self.file(program, to)
    }

    /// Starts the machine, sets Yama's `ptrace_scope` and runs a shell script as `identity`.
    ///
    /// # Panics
    /// If the machine does not reach the end of the script.
    pub fn run(&self, yama: u8, identity: Identity, script: &str) -> GuestRun {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        // A test that panicked while it held the lock has left nothing behind.
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let image = self.scratch.path().join("initrd");
        let (console_device, output_device) = self.machine.devices();
        let init2 = init2(yama, identity, self.limit).replace("OUTPUT", output_device);
        self.pack(&image, &init2, script)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", image.display()));
        let (console, output) = (self.path("console"), self.path("output"));
        let mut machine = self.machine.command(&self.memory, &console, &output);
        if self.counts {
            // Without sleep the clock jumps to the next timer where the machine would wait for it.
            machine.args(["-icount", "shift=0,sleep=off"]);
        }
        machine.arg("-kernel").arg(&self.image);
        machine.arg("-initrd").arg(&image);
        let options = "quiet panic=-1 rdinit=/init mitigations=off no_timer_check";
        machine.arg("-append").arg(format!(
            "console={console_device} {options}{}",
            self.options
        ));
        machine.stdin(Stdio::null());
        let ended = Limited::start(&mut machine, self.limit).finish(b"");
        let answer = fs::read(&output).unwrap_or_default();
        parse(&answer).unwrap_or_else(|| {
            let console = fs::read(&console).unwrap_or_default();
            panic!(
                "the guest gave no result; machine: {}; output: {}; console: {}",
                ended.stderr,
                String::from_utf8_lossy(&answer),
                String::from_utf8_lossy(&console)
            )
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn pack(&self, image: &Path, init2: &str, script: &str) -> io::Result<()> {
        let mut archive = Archive::new(BufWriter::new(File::create(image)?));
        archive.tree(self.rootfs.path(), "")?;
        archive.copy(&self.program, "usr/local/bin/tollgate")?;
        for (from, to) in &self.files {
            archive.copy(from, to.trim_start_matches('/'))?;
        }
        archive.add("init", 0o100_755, INIT.as_bytes())?;
        archive.add("init2", 0o100_755, init2.as_bytes())?;
        archive.add("script", 0o100_644, script.as_bytes())?;
        archive.finish()
    }
}

impl Default for Guest {
    fn default() -> Self {
        Self::new()
    }
}

fn init2(yama: u8, identity: Identity, limit: Duration) -> String {
    // The script's own limit comes first, so that its output is not lost with the machine.
    let limit = (limit - Duration::from_secs(30)).as_secs();
    INIT2
        .replace("YAMA", &yama.to_string())
        .replace("LIMIT", &limit.to_string())
        .replace("PREFIX", &identity.prefix().join(" "))
}

/// Parses `BOOT STATUS SIZE SIZE`, followed by as many bytes of output and error output.
fn parse(answer: &[u8]) -> Option<GuestRun> {
    let end = answer.iter().position(|byte| *byte == b'\n')?;
    let header = std::str::from_utf8(&answer[..end]).ok()?;
    let words: Vec<_> = header.split_ascii_whitespace().collect();
    let [boot, status, out, err] = words[..] else {
        return None;
    };
    let (out, err): (usize, usize) = (out.parse().ok()?, err.parse().ok()?);
    let text = &answer[end + 1..];
    let part = |from: usize, to: usize| {
        let bytes = text.get(from..to)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    Some(GuestRun {
        boot: Duration::from_secs_f64(boot.parse().ok()?),
        code: status.parse().ok()?,
        stdout: part(0, out)?,
        stderr: part(out, out + err)?,
    })
}

/// Writer of a cpio archive in the format that the kernel unpacks ("newc",
/// Documentation/driver-api/early-userspace/buffer-format.rst).
struct Archive<W: Write> {
    out: W,
    written: usize,
    files: u32,
}

impl<W: Write> Archive<W> {
    fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            files: 0,
        }
    }

    /// Adds a folder with all its content at `prefix`.
    fn tree(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().expect("the names are ours");
            let inside = format!("{prefix}{name}");
            let data = entry.path().symlink_metadata()?;
            let kind = data.file_type();
            if kind.is_dir() {
                self.add(&inside, data.mode(), b"")?;
                self.tree(&entry.path(), &format!("{inside}/"))?;
            } else if kind.is_symlink() {
                let link = fs::read_link(entry.path())?;
                self.add(&inside, data.mode(), link.as_os_str().as_bytes())?;
            } else if !kind.is_socket() {
                self.add(&inside, data.mode(), &fs::read(entry.path())?)?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, from: &Path, to: &str) -> io::Result<()> {
        let mode = from.metadata()?.mode();
        self.add(to, mode, &fs::read(from)?)
    }

    /// Adds one entry, owned by root.
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.files += 1;
        let (size, name_size) = (content.len(), name.len() + 1);
        let number = self.files;
        let header = format!(
            "070701{number:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}\
             {0:08x}{0:08x}{0:08x}{0:08x}{name_size:08x}{0:08x}",
            0, 1
        );
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(b"\0")?;
        self.pad()?;
        self.put(content)?;
        self.pad()
    }

    fn finish(mut self) -> io::Result<()> {
        self.add("TRAILER!!!", 0, b"")?;
        self.out.flush()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        const ZEROS: [u8; 4] = [0; 4];
        let odd = self.written % ZEROS.len();
        self.put(&ZEROS[..(ZEROS.len() - odd) % ZEROS.len()])
    }
}
