//! Short forms that keep a row of the event table on a few lines.

use crate::{ParamSource, ParamSpec, ParamType};

/// One row: name, category, descriptor, parameters.
macro_rules! row {
    ($name:literal, $category:ident, $descriptor:expr, [$($param:expr),* $(,)?]) => {
        $crate::EventSpec {
            name: $name,
            category: $crate::Category::$category,
            params: &[$($param),*],
            descriptor: $descriptor,
        }
    };
}

pub(super) use row;

const fn param(name: &'static str, ty: ParamType, source: ParamSource) -> ParamSpec {
    ParamSpec { name, ty, source }
}

/// The result, printed as an errno name when negative.
pub(super) const RES: ParamSpec = result("res", ParamType::Errno);
/// The result of calls that make a descriptor and name it `fd`.
pub(super) const NEW_FD: ParamSpec = result("fd", ParamType::Fd);
/// The same where the parameter is called `res`.
pub(super) const RES_FD: ParamSpec = result("res", ParamType::Fd);
/// Device of the opened file.
pub(super) const DEV: ParamSpec = nowhere("dev", ParamType::Hex);
/// Inode of the opened file.
pub(super) const INO: ParamSpec = nowhere("ino", ParamType::Uint);

pub(super) const fn result(name: &'static str, ty: ParamType) -> ParamSpec {
    param(name, ty, ParamSource::Result)
}

/// A register argument.
pub(super) const fn arg(name: &'static str, ty: ParamType, position: u8) -> ParamSpec {
    param(name, ty, ParamSource::Register(position))
}

/// A path that starts at the working directory.
pub(super) const fn path(name: &'static str, position: u8) -> ParamSpec {
    param(
        name,
        ParamType::Path,
        ParamSource::Path {
            path: position,
            base: None,
        },
    )
}

/// A path that starts at the directory descriptor in another argument.
pub(super) const fn path_at(name: &'static str, base: u8, position: u8) -> ParamSpec {
    param(
        name,
        ParamType::Path,
        ParamSource::Path {
            path: position,
            base: Some(base),
        },
    )
}

/// A string that is no path.
pub(super) const fn text(name: &'static str, position: u8) -> ParamSpec {
    param(name, ParamType::Text, ParamSource::Text(position))
}

/// An integer in a structure.
pub(super) const fn field(
    name: &'static str,
    ty: ParamType,
    arg: u8,
    offset: u8,
    size: u8,
) -> ParamSpec {
    param(name, ty, ParamSource::Field { arg, offset, size })
}

/// Bytes of a buffer.
pub(super) const fn bytes(name: &'static str, arg: u8, len: u8) -> ParamSpec {
    param(name, ParamType::Bytes, ParamSource::Buffer { arg, len })
}

pub(super) const fn constant(name: &'static str, ty: ParamType, value: u64) -> ParamSpec {
    param(name, ty, ParamSource::Constant(value))
}

/// The tuple of the event's descriptor.
pub(super) const TUPLE: ParamSpec = param("tuple", ParamType::Tuple, ParamSource::Tuple);

/// Told by the process.
pub(super) const fn of_process(name: &'static str, ty: ParamType) -> ParamSpec {
    param(name, ty, ParamSource::Process)
}

/// Known by name only, or filled by engines that record it.
pub(super) const fn nowhere(name: &'static str, ty: ParamType) -> ParamSpec {
    param(name, ty, ParamSource::Nowhere)
}
