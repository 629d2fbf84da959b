use super::*;

const STAT: &[u8] =
    b"4242 (a) b (c\nd)) S 17 4242 4200 34816 4300 4194560 1 2 3 4 5 6 7 8 20 0 3 0 \
    987654 10485760 256 18446744073709551615 1 2";

#[test]
fn stat_takes_any_command_name() {
    let parsed = parse_stat(STAT).unwrap();
    assert_eq!(parsed.comm.as_bytes(), b"a) b (c\nd)");
    assert_eq!(parsed.state, b'S');
    assert_eq!(parsed.stat.ppid.0, 17);
    assert_eq!((parsed.stat.pgid, parsed.stat.sid), (4242, 4200));
    assert_eq!((parsed.stat.tty, parsed.stat.tpgid), (34816, 4300));
    assert_eq!(parsed.stat.threads, 3);
    assert_eq!(parsed.start, StartTime(987_654));
    assert_eq!(parsed.stat.vm_size_kib, 10240);
    let page_kib = u64::try_from(sys::machine::page_size()).unwrap() / 1024;
    assert_eq!(parsed.stat.vm_rss_kib, 256 * page_kib);
}

#[test]
fn stat_survives_every_truncation_and_junk() {
    for end in 0..STAT.len() {
        let _ = parse_stat(&STAT[..end]);
    }
    assert_eq!(parse_stat(b")("), None);
    assert_eq!(parse_stat(b"1 () S"), None);
    assert_eq!(parse_stat(b""), None);
}

fn status_of(text: &[u8], piece: usize) -> Option<ThreadStatus> {
    let mut rest = text;
    parse_status(|buffer| {
        let count = piece.min(rest.len()).min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        Ok(count)
    })
    .unwrap()
}

#[test]
fn status_is_read_across_pieces_and_past_huge_group_lists() {
    let groups = "4294967294 ".repeat(65_536);
    let text = format!(
        "Name:\tx\\ny\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t50\nNgid:\t0\nPid:\t51\nPPid:\t7\n\
         TracerPid:\t9\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t{groups}\n\
         NStgid:\t50\t3\nNSpid:\t51\t4\nNSpgid:\t50\t3\nNSsid:\t40\t0\nThreads:\t2\n\
         CapInh:\t0000000000000001\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000002\n\
         CapBnd:\t0000000000000003\nCapAmb:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n"
    );
    for piece in [1, 100, 4096] {
        let parsed = status_of(text.as_bytes(), piece).unwrap();
        assert_eq!((parsed.tgid, parsed.ppid, parsed.tracer), (50, 7, 9));
        assert_eq!(
            (
                parsed.status.real_uid,
                parsed.status.credentials.uid,
                parsed.fs_uid
            ),
            (1, 2, 4)
        );
        assert_eq!((parsed.status.credentials.gid, parsed.fs_gid), (6, 8));
        assert_eq!((parsed.status.vpid, parsed.status.vtid), (3, 4));
        assert_eq!((parsed.status.vpgid, parsed.status.vsid), (3, 0));
        assert_eq!(parsed.status.cap_permitted, 0x1ff_ffff_ffff);
        assert_eq!(parsed.umask, Some(0o022));
        assert!(parsed.no_new_privs);
        assert_eq!((parsed.seccomp, parsed.seccomp_filters), (2, Some(3)));
    }
}

#[test]
fn status_without_credentials_is_malformed() {
    assert_eq!(status_of(b"Tgid:\t1\nPPid:\t0\n", 4096), None);
    assert_eq!(status_of(b"Uid:\t1\t2\n\xff:\xff\n", 4096), None);
}

#[test]
fn command_line_keeps_empty_arguments() {
    let line = split_command_line(b"sh\0-c\0\0x y\0", false);
    assert_eq!(line.exe, b"sh");
    assert_eq!(line.args, [&b"-c"[..], b"", b"x y"]);
    assert_eq!(split_command_line(b"", false), CommandLine::default());
    assert_eq!(split_command_line(b"\0", true).args, Vec::<Vec<u8>>::new());
    assert_eq!(
        split_command_line(b"renamed by setproctitle", false)
            .args
            .len(),
        0
    );
}

#[test]
fn mount_lines_unescape_and_find_options() {
    let text = b"22 1 0:5 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        junk\n\
        640 22 0:61 / /a\\040b rw - overlay overlay ro,lowerdir=/l1:/l2,upperdir=/var/u\\134x,workdir=/w\n";
    let mounts: Vec<_> = mount_lines(text).collect();
    assert_eq!(mounts.len(), 2);
    assert_eq!(unescape(mounts[1].mount_point).as_ref(), b"/a b");
    assert_eq!(
        mounts[1].super_option("upperdir").unwrap().as_ref(),
        b"/var/u\\x"
    );
    assert_eq!(mounts[1].super_option("upper"), None);
    assert!(mounts[1].is_read_only());
    assert!(!mounts[0].is_read_only());
    assert_eq!(unescape(b"\\04").as_ref(), b"\\04");
    assert_eq!(unescape(b"\\777\\").as_ref(), b"\\777\\");
}

#[test]
fn cgroup_lines_split_at_the_first_two_colons() {
    let text = b"12:cpu,cpuacct:/a:b\n0::/x (deleted)\n:\nnot a line\n99999999999:x:/\n";
    let lines: Vec<_> = cgroup_lines(text).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0].path, b"/a:b");
    assert_eq!((lines[1].hierarchy, lines[1].path), (0, &b"/x"[..]));
}

#[test]
fn own_process_reads_back() {
    let proc = Proc::open().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let stat = proc.stat(own).unwrap();
    assert_eq!(proc.stat_of(own, stat.start).unwrap().start, stat.start);
    let earlier = StartTime(stat.start.0 - 1);
    let reused = ProcError::Reused {
        pid: own,
        file: "stat",
    };
    assert_eq!(proc.stat_of(own, earlier), Err(reused));
    assert_eq!(proc.status(own).unwrap().tgid, own);
    let comm = proc.comm(own).unwrap();
    assert_eq!(comm, stat.comm);
    let args: Vec<_> = std::env::args().collect();
    assert_eq!(proc.command_line(own).unwrap().exe, args[0].as_bytes());
    let mut buffer = [0; LINK_LIMIT];
    let exe = proc.link(own, "exe", &mut buffer).unwrap().to_vec();
    assert_eq!(
        exe,
        std::env::current_exe()
            .unwrap()
            .into_os_string()
            .into_encoded_bytes()
    );
    assert!(proc.namespace(own, "ns/pid").unwrap() > 0);
    assert!(mount_lines(&proc.mountinfo(own).unwrap()).count() > 0);
    assert!(proc.login_uid(own).is_ok());
}

#[test]
fn a_process_that_ended_is_gone() {
    let proc = Proc::open().unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    child.wait().unwrap();
    assert_eq!(proc.stat(pid), Err(ProcError::Gone { pid, file: "stat" }));
    assert_eq!(proc.comm(pid), Err(ProcError::Gone { pid, file: "comm" }));
}
