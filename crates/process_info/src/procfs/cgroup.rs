//! Parser of `/proc/PID/cgroup`.

/// One line: a hierarchy and the process's place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupLine<'a> {
    /// Hierarchy number, 0 for version 2.
    pub hierarchy: u32,
    /// Comma-separated controllers, empty for version 2.
    pub controllers: &'a [u8],
    /// Path below the hierarchy's root as the reader's cgroup namespace shows it.
    pub path: &'a [u8],
}

/// Iterates over the well-formed lines of the file, and omits others. The kernel forbids newlines in cgroup
/// names.
pub fn cgroup_lines(text: &[u8]) -> impl Iterator<Item = CgroupLine<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let hierarchy = super::parse_number(parts.next()?)?;
        let controllers = parts.next()?;
        let path = parts.next()?;
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        Some(CgroupLine {
            hierarchy: u32::try_from(hierarchy).ok()?,
            controllers,
            path,
        })
    })
}
