//! Calls that take file names.

use abi::flags;

use super::row::{
    DEV, INO, NEW_FD, RES, RES_FD, arg, constant, field, nowhere, path, path_at, row, text,
};
use crate::DescriptorKind::{Inotify, Userfault};
use crate::DescriptorSource::{Argument, Created, None as NoDescriptor, Opened};
use crate::ParamType::{Fd, Flags, Hex, Mode, Text, Uint};
use crate::{Changes, EventSpec, IoDirection};

/// Event rows; parameters are in the order of Falco's exit events.
pub(super) static ROWS: &[EventSpec] = &[
    // Opening.
    row!(
        "open",
        File,
        Opened { name: 1, flags: 2 },
        [
            NEW_FD,
            path("name", 0),
            arg("flags", Flags(&flags::OPEN), 1),
            arg("mode", Mode, 2),
            DEV,
            INO
        ]
    )
    .on("name"),
    row!(
        "openat",
        File,
        Opened { name: 2, flags: 3 },
        [
            NEW_FD,
            arg("dirfd", Fd, 0),
            path_at("name", 0, 1),
            arg("flags", Flags(&flags::OPEN), 2),
            arg("mode", Mode, 3),
            DEV,
            INO,
        ]
    )
    .on("name"),
    // struct open_how: flags, mode, resolve, 8 bytes each (openat2(2)).
    row!(
        "openat2",
        File,
        Opened { name: 2, flags: 3 },
        [
            NEW_FD,
            arg("dirfd", Fd, 0),
            path_at("name", 0, 1),
            field("flags", Flags(&flags::OPEN), 2, 0, 8),
            field("mode", Mode, 2, 8, 8),
            field("resolve", Flags(&flags::RESOLVE), 2, 16, 8),
            DEV,
            INO,
        ]
    )
    .on("name"),
    row!(
        "creat",
        File,
        Opened { name: 1, flags: 5 },
        [
            NEW_FD,
            path("name", 0),
            arg("mode", Mode, 1),
            DEV,
            INO,
            constant("creat_flags", Hex, 0),
        ]
    )
    .on("name"),
    row!(
        "open_by_handle_at",
        File,
        Opened { name: 3, flags: 2 },
        [
            NEW_FD,
            arg("mountfd", Fd, 0),
            arg("flags", Flags(&flags::OPEN), 2),
            nowhere("path", crate::ParamType::Path),
            DEV,
            INO,
        ]
    ),
    // Names.
    // For links Falco calls the new name the source and the old one the target.
    row!(
        "link",
        File,
        NoDescriptor,
        [RES, path("oldpath", 0), path("newpath", 1)]
    )
    .between("newpath", "oldpath"),
    row!(
        "linkat",
        File,
        NoDescriptor,
        [
            RES,
            arg("olddir", Fd, 0),
            path_at("oldpath", 0, 1),
            arg("newdir", Fd, 2),
            path_at("newpath", 2, 3),
            arg("flags", Flags(&flags::AT), 4),
        ]
    )
    .between("newpath", "oldpath"),
    row!(
        "symlink",
        File,
        NoDescriptor,
        [RES, text("target", 0), path("linkpath", 1)]
    )
    .between("linkpath", "target"),
    row!(
        "symlinkat",
        File,
        Argument(1),
        [
            RES,
            text("target", 0),
            arg("linkdirfd", Fd, 1),
            path_at("linkpath", 1, 2)
        ]
    )
    .between("linkpath", "target"),
    row!(
        "rename",
        File,
        NoDescriptor,
        [RES, path("oldpath", 0), path("newpath", 1)]
    )
    .between("oldpath", "newpath"),
    row!(
        "renameat",
        File,
        NoDescriptor,
        [
            RES,
            arg("olddirfd", Fd, 0),
            path_at("oldpath", 0, 1),
            arg("newdirfd", Fd, 2),
            path_at("newpath", 2, 3),
        ]
    )
    .between("oldpath", "newpath"),
    row!(
        "renameat2",
        File,
        NoDescriptor,
        [
            RES,
            arg("olddirfd", Fd, 0),
            path_at("oldpath", 0, 1),
            arg("newdirfd", Fd, 2),
            path_at("newpath", 2, 3),
            arg("flags", Flags(&flags::RENAME), 4),
        ]
    )
    .between("oldpath", "newpath"),
    row!("unlink", File, NoDescriptor, [RES, path("path", 0)]).on("path"),
    row!(
        "unlinkat",
        File,
        Argument(0),
        [
            RES,
            arg("dirfd", Fd, 0),
            path_at("name", 0, 1),
            arg("flags", Flags(&flags::AT_UNLINK), 2),
        ]
    )
    .on("name"),
    row!(
        "mkdir",
        File,
        NoDescriptor,
        [RES, path("path", 0), arg("mode", Hex, 1)]
    )
    .on("path"),
    row!(
        "mkdirat",
        File,
        Argument(0),
        [
            RES,
            arg("dirfd", Fd, 0),
            path_at("path", 0, 1),
            arg("mode", Hex, 2)
        ]
    )
    .on("path"),
    row!("rmdir", File, NoDescriptor, [RES, path("path", 0)]).on("path"),
    row!(
        "mknod",
        Other,
        NoDescriptor,
        [
            RES,
            path("path", 0),
            arg("mode", Mode, 1),
            arg("dev", Uint, 2)
        ]
    )
    .on("path"),
    row!(
        "mknodat",
        Other,
        Argument(0),
        [
            RES,
            arg("dirfd", Fd, 0),
            path_at("path", 0, 1),
            arg("mode", Mode, 2),
            arg("dev", Uint, 3),
        ]
    )
    .on("path"),
    // Attributes.
    row!(
        "chmod",
        File,
        NoDescriptor,
        [RES, path("filename", 0), arg("mode", Mode, 1)]
    )
    .on("filename"),
    row!(
        "fchmod",
        File,
        Argument(0),
        [RES, arg("fd", Fd, 0), arg("mode", Mode, 1)]
    )
    .on_descriptor(),
    row!(
        "fchmodat",
        File,
        Argument(0),
        [
            RES,
            arg("dirfd", Fd, 0),
            path_at("filename", 0, 1),
            arg("mode", Mode, 2)
        ]
    )
    .on("filename"),
    // Falco has no row for it; the shape follows fchmodat.
    row!(
        "fchmodat2",
        File,
        Argument(0),
        [
            RES,
            arg("dirfd", Fd, 0),
            path_at("filename", 0, 1),
            arg("mode", Mode, 2),
            arg("flags", Flags(&flags::AT), 3),
        ]
    )
    .on("filename"),
    row!(
        "chown",
        File,
        NoDescriptor,
        [
            RES,
            path("path", 0),
            arg("uid", Uint, 1),
            arg("gid", Uint, 2)
        ]
    )
    .on("path"),
    row!(
        "lchown",
        File,
        NoDescriptor,
        [
            RES,
            path("path", 0),
            arg("uid", Uint, 1),
            arg("gid", Uint, 2)
        ]
    )
    .on("path"),
    row!(
        "fchown",
        File,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            arg("uid", Uint, 1),
            arg("gid", Uint, 2)
        ]
    )
    .on_descriptor(),
    row!(
        "fchownat",
        File,
        Argument(0),
        [
            RES,
            arg("dirfd", Fd, 0),
            path_at("pathname", 0, 1),
            arg("uid", Uint, 2),
            arg("gid", Uint, 3),
            arg("flags", Flags(&flags::AT), 4),
        ]
    )
    .on("pathname"),
    row!(
        "access",
        File,
        NoDescriptor,
        [RES, path("name", 0), arg("mode", Flags(&flags::ACCESS), 1),]
    ),
    row!("stat", File, NoDescriptor, [RES, path("path", 0)]),
    row!("lstat", File, NoDescriptor, [RES, path("path", 0)]),
    row!("fstat", File, Argument(0), [RES, arg("fd", Fd, 0)]),
    row!("stat64", File, NoDescriptor, [RES, path("path", 0)]),
    row!("lstat64", File, NoDescriptor, [RES, path("path", 0)]),
    row!("fstat64", File, NoDescriptor, [RES]),
    row!(
        "newfstatat",
        File,
        Argument(0),
        [
            RES,
            arg("dirfd", Fd, 0),
            path_at("path", 0, 1),
            arg("flags", Flags(&flags::AT), 3)
        ]
    ),
    // Directories and mounts.
    row!("chdir", File, NoDescriptor, [RES, text("path", 0)]).changing(Changes::DIRECTORY),
    row!("fchdir", File, Argument(0), [RES, arg("fd", Fd, 0)]).changing(Changes::DIRECTORY),
    row!("chroot", Process, NoDescriptor, [RES, path("path", 0)]),
    row!("getcwd", File, NoDescriptor, [RES, nowhere("path", Text)]),
    row!("getdents", File, Argument(0), [RES, arg("fd", Fd, 0)]),
    row!("getdents64", File, Argument(0), [RES, arg("fd", Fd, 0)]),
    row!(
        "mount",
        File,
        NoDescriptor,
        [
            RES,
            text("dev", 0),
            path("dir", 1),
            text("type", 2),
            arg("flags", Flags(&flags::MOUNT), 3),
        ]
    )
    .between("dev", "dir"),
    row!("umount", File, NoDescriptor, [RES, path("name", 0)]).on("name"),
    row!(
        "umount2",
        File,
        NoDescriptor,
        [RES, path("name", 0), arg("flags", Flags(&flags::UMOUNT), 1),]
    )
    .on("name"),
    row!(
        "quotactl",
        User,
        NoDescriptor,
        [
            RES,
            text("special", 1),
            nowhere("quotafilepath", Text),
            nowhere("dqb_bhardlimit", Uint),
            nowhere("dqb_bsoftlimit", Uint),
            nowhere("dqb_curspace", Uint),
            nowhere("dqb_ihardlimit", Uint),
            nowhere("dqb_isoftlimit", Uint),
            nowhere("dqb_btime", Uint),
            nowhere("dqb_itime", Uint),
            nowhere("dqi_bgrace", Uint),
            nowhere("dqi_igrace", Uint),
            nowhere("dqi_flags", Hex),
            nowhere("quota_fmt_out", Uint),
            arg("cmd", Hex, 0),
            nowhere("type", Uint),
            arg("id", Uint, 2),
            nowhere("quota_fmt", Uint),
        ]
    )
    .on("special"),
    row!(
        "flock",
        File,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            arg("operation", Flags(&flags::FLOCK), 1),
        ]
    ),
    row!(
        "copy_file_range",
        File,
        Argument(2),
        [
            RES,
            arg("fdout", Fd, 2),
            nowhere("offout", Uint),
            arg("fdin", Fd, 0),
            nowhere("offin", Uint),
            arg("len", Uint, 4),
        ]
    )
    .moving(IoDirection::Both),
    // Descriptors that watch files or memory.
    row!(
        "inotify_init",
        Ipc,
        Created(Inotify),
        [RES_FD, constant("flags", Hex, 0)]
    ),
    row!(
        "inotify_init1",
        Ipc,
        Created(Inotify),
        [RES_FD, arg("flags", Flags(&flags::INOTIFY_INIT), 0),]
    ),
    row!(
        "userfaultfd",
        File,
        Created(Userfault),
        [RES, arg("flags", Flags(&flags::USERFAULTFD), 0),]
    ),
    // Falco has no rows for these; their subject is a path, so `fs.path` should know it.
    row!(
        "truncate",
        File,
        NoDescriptor,
        [RES, path("path", 0), arg("length", Uint, 1)]
    )
    .on("path"),
    row!(
        "ftruncate",
        File,
        Argument(0),
        [RES, arg("fd", Fd, 0), arg("length", Uint, 1)]
    )
    .on_descriptor(),
    row!(
        "setxattr",
        File,
        NoDescriptor,
        [
            RES,
            path("path", 0),
            text("name", 1),
            arg("size", Uint, 3),
            arg("flags", Flags(&flags::XATTR), 4),
        ]
    )
    .on("path"),
    row!(
        "lsetxattr",
        File,
        NoDescriptor,
        [
            RES,
            path("path", 0),
            text("name", 1),
            arg("size", Uint, 3),
            arg("flags", Flags(&flags::XATTR), 4),
        ]
    )
    .on("path"),
    row!(
        "fsetxattr",
        File,
        Argument(0),
        [
            RES,
            arg("fd", Fd, 0),
            text("name", 1),
            arg("size", Uint, 3),
            arg("flags", Flags(&flags::XATTR), 4),
        ]
    )
    .on_descriptor(),
];
