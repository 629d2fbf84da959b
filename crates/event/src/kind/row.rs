//! Constructors that keep a row of the event table short.

use crate::{
    Category, Changes, EngineSupport, EventSpec, IoDirection, ParamSource, ParamSpec, ParamType,
    PathParams,
};

/// Builds one row: name, category, descriptor, parameters. The methods of [`EventSpec`] below add what most rows
/// do not need.
macro_rules! row {
    ($name:literal, $category:ident, $descriptor:expr, [$($param:expr),* $(,)?]) => {
        $crate::EventSpec {
            name: $name,
            category: $crate::Category::$category,
            params: &[$($param),*],
            descriptor: $descriptor,
            changes: $crate::Changes::NONE,
            paths: $crate::PathParams::None,
            io: $crate::IoDirection::of($crate::Category::$category),
            engines: $crate::EngineSupport::of($crate::Category::$category),
        }
    };
}

pub(super) use row;

impl EventSpec {
    /// Sets what a successful call changes about its caller.
    pub(super) const fn changing(mut self, changes: Changes) -> Self {
        self.changes = changes;
        self
    }

    /// Makes the parameter of this name the path that the call works on.
    pub(super) const fn on(mut self, path: &str) -> Self {
        self.paths = PathParams::One(position(self.params, path));
        self
    }

    /// Makes the name of the descriptor the path that the call works on.
    pub(super) const fn on_descriptor(mut self) -> Self {
        self.paths = PathParams::Descriptor;
        self
    }

    /// Sets the parameters that hold the path that something comes from, and the one that it goes to.
    pub(super) const fn between(mut self, source: &str, target: &str) -> Self {
        self.paths = PathParams::Two {
            source: position(self.params, source),
            target: position(self.params, target),
        };
        self
    }

    /// Sets the direction of the data, where Falco takes another one than the category says.
    pub(super) const fn moving(mut self, io: IoDirection) -> Self {
        self.io = io;
        self
    }

    /// Sets the engines that deliver live events, where the category does not say it.
    pub(super) const fn by(mut self, engines: EngineSupport) -> Self {
        self.engines = engines;
        self
    }
}

impl IoDirection {
    /// Returns the direction that a category implies.
    pub(super) const fn of(category: Category) -> Self {
        match category {
            Category::IoRead => Self::Read,
            Category::IoWrite => Self::Write,
            _ => Self::None,
        }
    }
}

impl EngineSupport {
    /// Returns the engines that deliver events of a category, unless the row says otherwise.
    pub(super) const fn of(category: Category) -> Self {
        match category {
            Category::Internal => Self::Nobody,
            _ => Self::Every,
        }
    }
}

/// Returns the position of the parameter of this name. A row that names another one does not compile.
const fn position(params: &[ParamSpec], name: &str) -> u8 {
    let (mut index, mut position) = (0, 0);
    while index < params.len() {
        if is_same(params[index].name.as_bytes(), name.as_bytes()) {
            return position;
        }
        index += 1;
        position += 1;
    }
    panic!("the row has no parameter of this name")
}

/// Compares two texts; `==` is not constant.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() {
        if one[index] != other[index] {
            return false;
        }
        index += 1;
    }
    one.len() == other.len()
}

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
