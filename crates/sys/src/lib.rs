//! Safe wrappers over the raw kernel calls that tollgate needs; the only hand-written unsafe code.
