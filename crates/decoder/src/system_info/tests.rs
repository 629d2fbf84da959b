use super::*;
use event::Containment;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};

struct NoIndex;

impl ProcessIndex for NoIndex {
    fn process(&self, _: Pid) -> Lookup<Arc<Process>> {
        Lookup::Missing
    }
}

fn world() -> LiveSystemInfo {
    let options = SystemInfoOptions {
        deadline: Duration::from_secs(10),
        ..SystemInfoOptions::default()
    };
    LiveSystemInfo::new(options, Arc::new(NoIndex)).unwrap()
}

fn process_of(world: &LiveSystemInfo, pid: u32) -> Process {
    let pid = i32::try_from(pid).unwrap();
    let stat = world.proc().stat(pid).unwrap();
    Process::new(Pid(pid), stat.start, 0, None, Arc::default(), stat.comm)
}

/// A program that waits, past its exec.
fn sleeper(world: &LiveSystemInfo, program: &str) -> (Child, Process) {
    let child = Command::new(program)
        .arg("600")
        .env("MARK", "x")
        .spawn()
        .unwrap();
    // The kernel wakes the parent of a vfork when the old memory is gone, a moment before the new
    // program's arguments are in place.
    let arguments = format!("/proc/{}/cmdline", child.id());
    while std::fs::read(&arguments).unwrap().is_empty() {
        std::thread::yield_now();
    }
    let process = process_of(world, child.id());
    (child, process)
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_child_is_described_and_remembered_after_its_end() {
    let world = world();
    let (child, process) = sleeper(&world, "sleep");
    let image = process.image();
    let tid = Tid(process.pid.0);
    assert_eq!(world.comm(&process), Lookup::Found(Comm::new(b"sleep")));
    let Lookup::Found(stat) = world.stat(&process) else {
        panic!("stat")
    };
    assert_eq!(stat.ppid.0, i32::try_from(std::process::id()).unwrap());
    let Lookup::Found(status) = world.status(&process, tid) else {
        panic!("status")
    };
    assert_eq!(status.credentials.uid, rustix::process::geteuid().as_raw());
    assert_eq!(
        world.status(&process, Tid(1)),
        Lookup::Unknown,
        "a thread of another process"
    );
    let Lookup::Found(line) = world.command_line(&process, &image) else {
        panic!("cmdline")
    };
    assert_eq!(
        (line.exe, line.args),
        (b"sleep".to_vec(), vec![b"600".to_vec()])
    );
    let Lookup::Found(executable) = world.executable(&process, &image) else {
        panic!("exe")
    };
    assert!(executable.ends_with(b"sleep"));
    assert!(!file_of(&world, &process).flags.from_memfd);
    let Lookup::Found(environment) = world.environment(&process, &image) else {
        panic!("env")
    };
    assert!(
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == b"MARK=x")
    );
    let container = world.container(&process);

    end(child);
    assert_eq!(world.comm(&process), Lookup::Found(Comm::new(b"sleep")));
    assert_eq!(world.stat(&process), Lookup::Unknown);
    assert_eq!(world.status(&process, tid), Lookup::Unknown);
    assert_eq!(
        world.executable(&process, &image),
        Lookup::Found(executable)
    );
    assert_eq!(world.container(&process), container);
    assert_eq!(world.login_uid(&process), Lookup::Unknown);
    assert_eq!(world.user(&process, 0), Lookup::Unknown);
}

fn file_of(world: &LiveSystemInfo, process: &Process) -> ExecutableFile {
    match world.executable_file(process, &process.image()) {
        Lookup::Found(file) => file,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reused_pid_tells_nothing_about_the_process_before() {
    let world = world();
    let (child, process) = sleeper(&world, "sleep");
    let earlier = StartTime(process.start.0 - 1);
    let image: Arc<Image> = Arc::default();
    let before = Process::new(
        process.pid,
        earlier,
        0,
        None,
        Arc::clone(&image),
        Comm::new(b"before"),
    );
    assert_eq!(world.comm(&before), Lookup::Found(Comm::new(b"before")));
    assert_eq!(world.stat(&before), Lookup::Unknown);
    assert_eq!(world.command_line(&before, &image), Lookup::Unknown);
    assert_eq!(world.executable(&before, &image), Lookup::Unknown);
    assert_eq!(world.container(&before).containment, Containment::Unknown);
    assert_eq!(image.executable.get(), None, "nothing may be remembered");
    end(child);
}

#[test]
fn an_image_that_was_replaced_is_not_filled_from_the_new_one() {
    let world = world();
    let (child, process) = sleeper(&world, "sleep");
    let old = process.image();
    process.exec(Arc::default(), Comm::new(b"new"));
    assert_eq!(world.executable(&process, &old), Lookup::Unknown);
    assert_eq!(world.command_line(&process, &old), Lookup::Unknown);
    end(child);
}

#[test]
fn directories_are_those_of_the_kernel() {
    let world = world();
    let arena = Bump::new();
    let own = Tid(i32::try_from(std::process::id()).unwrap());
    let cwd = std::env::current_dir()
        .unwrap()
        .into_os_string()
        .into_encoded_bytes();
    assert_eq!(
        world.directory(own, None, &arena),
        Lookup::Found(cwd.as_slice())
    );
    let directory = std::fs::File::open("/usr").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&directory);
    assert_eq!(
        world.directory(own, Some(number), &arena),
        Lookup::Found(&b"/usr"[..])
    );
    assert_eq!(
        world.descriptor_type(own, number),
        Lookup::Found(DescriptorKind::Directory)
    );
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&socket);
    assert_eq!(world.directory(own, Some(number), &arena), Lookup::Unknown);
    assert_eq!(
        world.descriptor_type(own, number),
        Lookup::Found(DescriptorKind::Ipv4)
    );
}

#[test]
fn users_come_from_the_process_own_root() {
    let world = world();
    let own = process_of(&world, std::process::id());
    let Lookup::Found(root) = world.user(&own, 0) else {
        panic!("root")
    };
    assert_eq!(root.name, "root");
    assert_eq!(world.user(&own, 3_999_999_999), Lookup::Missing);
    let Lookup::Found(group) = world.group(&own, 0) else {
        panic!("group")
    };
    assert_eq!(group.name, "root");

    testing::need_root!();
    let root = std::env::temp_dir().join(format!("world-root-{}", std::process::id()));
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::write(root.join("etc/passwd"), "inner:x:77:77::/:/bin/x\n").unwrap();
    let Ok(()) = testing::copy_program("/bin/busybox", root.join("busybox")) else {
        std::fs::remove_dir_all(&root).unwrap();
        testing::skip!("needs busybox-static", || Ok(
            "/bin/busybox cannot be copied".to_owned()
        ));
    };
    let mut command = Command::new("chroot");
    command
        .arg(&root)
        .args(["/busybox", "sleep", "600"])
        .stdin(Stdio::null());
    let child = command.spawn().unwrap();
    let limit = std::time::Instant::now() + Duration::from_secs(10);
    let pid = i32::try_from(child.id()).unwrap();
    while std::time::Instant::now() < limit
        && world
            .proc()
            .comm(pid)
            .is_ok_and(|comm| comm.as_bytes() != b"busybox")
    {
        std::thread::yield_now();
    }
    let inner = process_of(&world, child.id());
    let Lookup::Found(user) = world.user(&inner, 77) else {
        panic!("inner user")
    };
    assert_eq!(user.name, "inner");
    assert_eq!(world.user(&own, 77), Lookup::Missing);
    end(child);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn deleted_and_nameless_executables_are_told() {
    let world = world();
    let path = std::env::temp_dir().join(format!("world-exe-{} (deleted)", std::process::id()));
    testing::copy_program("/bin/sleep", &path).unwrap();
    let (child, process) = sleeper(&world, path.to_str().unwrap());
    let wanted = path.clone().into_os_string().into_encoded_bytes();
    let image: Arc<Image> = process.image();
    let Lookup::Found(before) = world.executable(&process, &image) else {
        panic!("before")
    };
    assert_eq!(before, wanted, "a name that ends like the kernel's mark");
    let file_before = file_of(&world, &process);
    std::fs::remove_file(&path).unwrap();
    process.exec(Arc::default(), Comm::new(b"x"));
    let Lookup::Found(after) = world.executable(&process, &process.image()) else {
        panic!()
    };
    let file_after = file_of(&world, &process);
    assert_eq!((after, file_after.inode), (wanted, file_before.inode));
    assert!(!file_after.flags.from_memfd);
    end(child);

    let memfd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::empty()).unwrap();
    let mut file = std::fs::File::from(memfd);
    std::io::copy(&mut std::fs::File::open("/bin/sleep").unwrap(), &mut file).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    // Opened again for reading only: a file open for writing cannot be executed.
    let own = format!("/proc/self/fd/{number}");
    let reader = std::fs::File::open(own).unwrap();
    drop(file);
    let number = std::os::fd::AsRawFd::as_raw_fd(&reader);
    let exe = format!("/proc/{}/fd/{number}", std::process::id());
    let (child, process) = sleeper(&world, &exe);
    let Lookup::Found(found) = world.executable(&process, &process.image()) else {
        panic!()
    };
    assert_eq!(found, b"/memfd:x");
    assert!(file_of(&world, &process).flags.from_memfd);
    end(child);
}

/// Mounts an overlay of two programs below a new folder. False if it cannot be mounted; then nothing is left.
fn mount_overlay(base: &std::path::Path) -> bool {
    for directory in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir_all(base.join(directory)).unwrap();
    }
    // The layers must not themselves be on an overlay that cannot be a layer: a tmpfs always can.
    testing::copy_program("/bin/sleep", base.join("lower/below")).unwrap();
    testing::copy_program("/bin/sleep", base.join("lower/changed")).unwrap();
    let at = |name: &str| base.join(name).to_str().unwrap().to_owned();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        at("lower"),
        at("upper"),
        at("work")
    );
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "overlay", "-o", &options, &at("merged")]);
    let mounted = mount.stderr(Stdio::null()).status();
    let is_mounted = mounted.is_ok_and(|status| status.success());
    if !is_mounted {
        std::fs::remove_dir_all(base).unwrap();
    }
    is_mounted
}

#[test]
fn layers_of_an_overlay_are_told_apart() {
    let world = world();
    let base = std::env::temp_dir().join(format!("world-overlay-{}", std::process::id()));
    let at = |name: &str| base.join(name).to_str().unwrap().to_owned();
    if !mount_overlay(&base) {
        testing::skip!("needs overlay mounts", || Ok(
            "mount -t overlay failed".to_owned()
        ));
    }
    testing::copy_program("/bin/sleep", base.join("merged/above")).unwrap();
    // Changing the mode copies the file up.
    let changed = base.join("merged/changed");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(changed, mode).unwrap();
    let look_at = |path: &str| {
        let (child, process) = sleeper(&world, path);
        let file = file_of(&world, &process);
        let says_upper = layers::handle_says_upper(world.proc(), process.pid.0);
        end(child);
        (file.flags.upper_layer, file.flags.lower_layer, says_upper)
    };
    let look = |name: &str| look_at(&at(&format!("merged/{name}")));
    let found = [look("below"), look("above"), look("changed")];
    let merged = std::fs::File::open(at("merged")).unwrap();
    let detached = sys::namespace::mount_of_its_own(merged.as_fd()).unwrap();
    drop(merged);
    let (own, number) = (std::process::id(), detached.as_raw_fd());
    let in_detached = |name: &str| look_at(&format!("/proc/{own}/fd/{number}/{name}"));
    let through_other = [in_detached("below"), in_detached("above")];
    let unmounted = Command::new("umount").arg(at("merged")).status().unwrap();
    assert!(unmounted.success());
    let through_none = [in_detached("below"), in_detached("above")];
    std::fs::remove_dir_all(&base).unwrap();
    // Whatever shows the file, it is never said to be of the image without proof.
    for (upper, lower, says_upper) in [through_other, through_none].concat() {
        let is_known = says_upper.then_some(true);
        let is_expected = upper == is_known || upper.is_none();
        assert!(
            is_expected && lower == upper.map(|is| !is),
            "{upper:?} {lower:?}"
        );
    }
    assert_eq!(through_other[1].0.is_some(), through_other[1].2);
    let on_host = world.own_container().containment == Containment::Host;
    let told = |upper: bool| {
        if on_host {
            (Some(upper), Some(!upper))
        } else {
            (None, None)
        }
    };
    assert_eq!((found[0].0, found[0].1), told(false));
    assert_eq!((found[2].0, found[2].1), told(true));
    assert!(!found[0].2 && !found[2].2, "only new files carry the mark");
    if found[1].2 || on_host {
        assert_eq!((found[1].0, found[1].1), (Some(true), Some(false)));
    }
}

#[test]
fn writability_follows_the_permission_check() {
    let world = world();
    let path = std::env::temp_dir().join(format!("world-writable-{}", std::process::id()));
    testing::copy_program("/bin/sleep", &path).unwrap();
    let look = |path: &str| {
        let (child, process) = sleeper(&world, path);
        let writable = world.executable_writable(&process, &process.image());
        end(child);
        writable
    };
    let own = look(path.to_str().unwrap());
    assert_eq!(own, Lookup::Found(true), "the owner's own file");
    if rustix::process::geteuid().is_root() {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&path)
            .arg("600");
        let child = command.spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let limit = std::time::Instant::now() + Duration::from_secs(10);
        while std::time::Instant::now() < limit
            && world
                .proc()
                .comm(pid)
                .is_ok_and(|comm| !comm.as_bytes().starts_with(b"world-"))
        {
            std::thread::yield_now();
        }
        let process = process_of(&world, child.id());
        let writable = world.executable_writable(&process, &process.image());
        end(child);
        let why = "another user's file without write permission";
        assert_eq!(writable, Lookup::Found(false), "{why}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn open_descriptors_are_listed_and_named() {
    let world = world();
    let arena = Bump::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::net::TcpStream::connect(address).unwrap();
    let own = client.local_addr().unwrap();
    let file = std::fs::File::open("/etc/passwd").unwrap();
    let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get());
    let number = |fd: &dyn std::os::fd::AsRawFd| fd.as_raw_fd();
    let name = |number: i32| match world.descriptor_name(tid, number, &arena) {
        Lookup::Found(name) => String::from_utf8_lossy(name).into_owned(),
        other => format!("{other:?}"),
    };
    assert_eq!(name(number(&file)), "/etc/passwd");
    assert_eq!(name(number(&client)), format!("{own}->{address}"));
    assert_eq!(name(9999), "Missing");
    let Lookup::Found(numbers) = world.open_descriptors(tid, &arena) else {
        panic!("a list")
    };
    assert!(numbers.contains(&number(&file)) && numbers.contains(&number(&client)));
}
