//! What a process can make `/proc` say of it: names with brackets and newlines, mounts, control groups. Nothing may
//! panic, and no reader returns more than it was given.

#![no_main]

use std::hint::black_box;

use libfuzzer_sys::fuzz_target;
use process_info::procfs;

fuzz_target!(|bytes: &[u8]| {
    black_box(procfs::parse_stat(bytes));
    black_box(procfs::parse_number(bytes));
    black_box(procfs::bracketed_number(bytes));
    for mount in procfs::mount_lines(bytes) {
        assert!(procfs::unescape(mount.mount_point).len() <= mount.mount_point.len());
        black_box((mount.super_option("upperdir"), mount.is_read_only()));
    }
    for line in procfs::cgroup_lines(bytes) {
        black_box(line.controllers);
    }
    black_box(container::identify(bytes));
    for is_cut in [false, true] {
        let line = procfs::split_command_line(bytes, is_cut);
        let words = line.args.iter().map(Vec::len).sum::<usize>();
        assert!(words + line.exe.len() <= bytes.len());
    }
    let mut rest = bytes;
    black_box(procfs::parse_status(|chunk| {
        let count = rest.len().min(chunk.len());
        chunk[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        Ok(count)
    }))
    .ok();
});
