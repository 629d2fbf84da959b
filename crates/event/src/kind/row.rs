//! Constructors that keep a row of the event table short.

use crate::{ParamSource, ParamSpec, ParamType};

/// Builds one row: name, category, descriptor, parameters.
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

/// The result, printed as an errno name if negative.
pub(super) const RES: ParamSpec = result("res", ParamType::Errno);
/// The result of calls that create a descriptor and name it `fd`.
pub(super) const NEW_FD: ParamSpec = result("fd", ParamType::Fd);
/// The result of calls that create a descriptor and name it `res`.
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

/// A string that is not a path.
pub(super) const fn text(name: &'static str, position: u8) -> ParamSpec {
    param(name, ParamType::Text, ParamSource::Text(position))
}

/// An integer inside a structure.
pub(super) const fn field(
    name: &'static str,
    ty: ParamType,
    arg: u8,
    offset: u8,
    size: u8,
) -> ParamSpec {
    param(name, ty, ParamSource::Field { arg, offset, size })
}

/// Bytes of a buffer argument.
pub(super) const fn bytes(name: &'static str, arg: u8, len: u8) -> ParamSpec {
    param(name, ParamType::Bytes, ParamSource::Buffer { arg, len })
}

pub(super) const fn constant(name: &'static str, ty: ParamType, value: u64) -> ParamSpec {
    param(name, ty, ParamSource::Constant(value))
}

/// The tuple of the event's descriptor.
pub(super) const TUPLE: ParamSpec = param("tuple", ParamType::Tuple, ParamSource::Tuple);

/// A fact of the calling process.
pub(super) const fn of_process(name: &'static str, ty: ParamType) -> ParamSpec {
    param(name, ty, ParamSource::Process)
}

/// A parameter known by name only, or filled by engines that record it.
pub(super) const fn nowhere(name: &'static str, ty: ParamType) -> ParamSpec {
    param(name, ty, ParamSource::Nowhere)
}
