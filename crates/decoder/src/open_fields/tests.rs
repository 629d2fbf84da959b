use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use abi::Syscall;
use abi::constant::{O_APPEND, O_DIRECT, O_PATH, O_RDWR, O_WRONLY};
use event::{DescriptorKind, Name};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::*;

fn openat2() -> EventKind {
    EventKind::of_syscall(Syscall::OPENAT2)
}

fn fields(flags: u64) -> OpenFields {
    let at = |name| openat2().param_index(name).expect("openat2 has it");
    OpenFields {
        kind: openat2(),
        flags_at: at("flags"),
        values: vec![(at("flags"), flags), (at("mode"), 0), (at("resolve"), 0)],
    }
}

fn file(flags: u64) -> FileFlags {
    FileFlags {
        flags,
        is_created: false,
    }
}

/// A call of openat2 with these flags, as it is decoded.
fn decoded<'a>(flags: Param<'a>, arena: &'a Bump) -> Decoded<'a> {
    let specs = openat2().spec().params;
    let value = |spec: &event::ParamSpec| match spec.name {
        "flags" => flags,
        "name" => Param::Text(b"/etc/shadow"),
        _ => Param::Uint(0),
    };
    Decoded {
        params: arena.alloc_slice_fill_iter(specs.iter().map(value)),
        descriptor: Some(Descriptor {
            number: Known::NotYet,
            kind: Known::Yes(DescriptorKind::File),
            name: Name::None,
            socket: None,
            device: Known::NotYet,
            inode: Known::NotYet,
        }),
        messages: &[],
        unreadable: false,
        gone: false,
        refused: false,
        forced: false,
        is_shared: false,
    }
}

/// Walks all calls: nothing is believed of the flags of another one that lie in memory.
#[test]
fn openat2_alone_passes_flags_in_memory() {
    for syscall in Syscall::all() {
        let kind = EventKind::of_syscall(syscall);
        assert_eq!(
            are_in_memory(kind),
            syscall == Syscall::OPENAT2,
            "{syscall}"
        );
    }
}

/// Opens a file with the flag as the kernel takes it; `None` if the file system or the kernel refuses it.
fn open_with(flag: u64, folder: &str, path: &str) -> Option<OwnedFd> {
    // A nameless file must be written to, and nothing else goes with a file that is only named.
    let is_temporary = flag & TEMPORARY != 0;
    let is_folder = flag & O_DIRECTORY.u64() != 0;
    let access = match is_temporary {
        true => O_RDWR.u64(),
        false => 0,
    };
    let flags = OFlags::from_bits_retain(u32::try_from(flag | access).expect("32 bits"));
    let mode = match flags.intersects(OFlags::CREATE) || is_temporary {
        true => Mode::RUSR,
        false => Mode::empty(),
    };
    let path = if is_folder { folder } else { path };
    let dir = File::open("/").expect("it is there");
    rustix::fs::openat2(&dir, path, flags, mode, ResolveFlags::empty()).ok()
}

fn shown(descriptor: &OwnedFd) -> u64 {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = std::fs::read_to_string(path).expect("it is open");
    let line = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let octal = line.expect("each file has flags").trim();
    u64::from_str_radix(octal, 8).expect("octal")
}

/// Walks the table of flags: the kernel shows each that is compared, and each that is not has its reason.
#[test]
fn the_kernel_shows_each_flag_that_is_compared() {
    let arch = Arch::native().expect("tests run where the program does");
    let scratch = std::env::temp_dir().join(format!("open-fields-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).expect("writable");
    let path = scratch.join("file");
    std::fs::write(&path, "text").expect("writable");
    let (folder, path) = (scratch.display().to_string(), path.display().to_string());
    let mut compared = 0;
    for entry in abi::flags::OPEN.entries() {
        let flag = entry.value(arch);
        if flag & HIDDEN != 0 {
            assert_eq!(flag & !HIDDEN, 0, "{} is compared in part", entry.name());
            continue;
        }
        let Some(opened) = open_with(flag, &folder, &path) else {
            // O_DIRECT where the file system has none.
            assert_eq!(flag, O_DIRECT.u64(), "{}", entry.name());
            continue;
        };
        let passed = match flag & TEMPORARY {
            0 => flag,
            _ => flag | O_RDWR.u64(),
        };
        let (fields, shown) = (fields(passed), file(shown(&opened)));
        assert!(fields.fit(shown), "{}: {shown:x?}", entry.name());
        let other = super::tests::fields(passed ^ flag);
        assert!(flag == 0 || !other.fit(shown), "{}", entry.name());
        assert_eq!(
            other.corrected(shown).flags() & *SHOWN,
            shown.flags & *SHOWN
        );
        compared += 1;
    }
    std::fs::remove_dir_all(&scratch).expect("it is ours");
    assert!(compared >= 9, "{compared}");
}

/// The flags that are not compared, passed, and what a file shows of them.
#[test]
fn flags_that_the_kernel_does_not_show_are_not_compared() {
    for hidden in (0..u64::BITS)
        .map(|bit| 1 << bit)
        .filter(|bit| HIDDEN & bit != 0)
    {
        assert!(fields(O_WRONLY.u64() | hidden).fit(file(O_WRONLY.u64())));
        assert!(fields(O_WRONLY.u64()).fit(file(O_WRONLY.u64() | hidden)));
        // What was read is kept of them.
        let corrected = fields(hidden).corrected(file(O_WRONLY.u64()));
        assert_eq!(corrected.flags(), O_WRONLY.u64() | hidden);
    }
}

#[test]
fn each_other_access_is_found() {
    let ways = [
        0,
        O_WRONLY.u64(),
        O_RDWR.u64(),
        O_PATH.u64(),
        O_APPEND.u64(),
    ];
    for passed in ways {
        for used in ways {
            let fields = fields(passed);
            assert_eq!(
                fields.fit(file(used)),
                passed == used,
                "{passed:o} {used:o}"
            );
            assert_eq!(fields.corrected(file(used)).flags(), used);
        }
    }
    // The kernel adds O_DSYNC to the other half of O_SYNC.
    assert!(fields(FULL_SYNC).fit(file(O_SYNC.u64())));
    assert!(!fields(O_DSYNC.u64()).fit(file(O_SYNC.u64())));
}

#[test]
fn a_file_that_was_created_was_opened_with_the_flag_for_it() {
    let created = FileFlags {
        flags: O_WRONLY.u64(),
        is_created: true,
    };
    let fields = fields(O_WRONLY.u64());
    assert!(!fields.fit(created));
    let corrected = fields.corrected(created);
    assert_eq!(corrected.flags(), O_WRONLY.u64() | O_CREAT.u64());
    assert!(corrected.fit(created));
    let nameless = O_TMPFILE.u64() | O_RDWR.u64();
    let created = FileFlags {
        flags: nameless,
        is_created: true,
    };
    let fields = super::tests::fields(nameless);
    assert!(fields.fit(created));
    assert_eq!(fields.corrected(created).flags(), nameless);
}

#[test]
fn values_are_read_of_a_call_and_put_into_it() {
    let arena = Bump::new();
    let call = decoded(Param::Uint(O_PATH.u64()), &arena);
    let read = OpenFields::of(openat2(), &call).expect("all of them were read");
    assert_eq!(read, fields(O_PATH.u64()));
    assert_eq!(
        read.to_string(),
        "flags=O_RDONLY|O_PATH mode=0o0 resolve=0o0"
    );
    let folder = O_DIRECTORY.u64() | O_WRONLY.u64();
    let corrected = read.corrected(file(folder)).put(&call, &arena);
    assert_eq!(OpenFields::of(openat2(), &corrected), Some(fields(folder)));
    let kind = corrected.descriptor.expect("as before").kind;
    assert_eq!(kind, Known::Yes(DescriptorKind::Directory));
    let unknown = without_values(openat2(), &call, &arena);
    assert_eq!(OpenFields::of(openat2(), &unknown), None);
    assert_eq!(unknown.descriptor.expect("as before").kind, Known::NotYet);
    let path = openat2().param_index("name").expect("openat2 has it");
    assert_eq!(unknown.params[path], Param::Text(b"/etc/shadow"));
}
