//! The box of a guarded command: what it may read, write, execute and connect to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use agent::guard::WideFolders;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use crate::options::{Allowed, BoxOptions, Preset};
use crate::places::{self, absolute, resolved, text};
use crate::tools::{self, GIT_HOSTS, Tool};

/// The parts of a policy.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Paths and patterns that may be used, with the letters r, w and x.
    files: BTreeMap<String, BTreeSet<char>>,
    /// Paths that are denied within those.
    pub(super) denied: BTreeSet<PathBuf>,
    /// Folders that no advice opens.
    pub(super) wide: WideFolders,
    /// Peers; `None` if the network is not restricted.
    pub(super) peers: Option<BTreeSet<String>>,
    allowed: Vec<Allowed>,
    is_root: bool,
}

/// The circumstances of a command.
struct Host {
    home: Vec<PathBuf>,
    folder: PathBuf,
    is_root: bool,
    users: String,
}

/// Peers that name lookups of the C library use.
const LOOKUPS: [&str; 3] = [
    "unix:/run/nscd/socket",
    "unix:/run/systemd/resolve/io.systemd.Resolve",
    "unix:/run/systemd/userdb/**",
];
/// This host; an unspecified address is its loopback address, too.
const LOOPBACK: [&str; 4] = ["127.0.0.0/8:*", "[::1]:*", "0.0.0.0:*", "[::]:*"];
/// Requests that put input into a terminal, which the shell outside would read: `TIOCSTI`, `TIOCLINUX`.
const KEYSTROKES: [u32; 2] = [0x5412, 0x541c];
/// Tests of the families of sockets that reach further than this host: all but Unix (1) and netlink (16). They compare
/// 64 bits, of which the kernel takes 32: a family with others set is above 16, too.
const DISTANT: [&str; 3] = [
    "{index: 0, value: 1, op: SCMP_CMP_LT}",
    "{index: 0, value: 2, op: SCMP_CMP_GE}, {index: 0, value: 15, op: SCMP_CMP_LE}",
    "{index: 0, value: 17, op: SCMP_CMP_GE}",
];

impl Layout {
    /// Composes the box of a command.
    pub(super) fn of(options: &BoxOptions, command: Option<&Path>) -> Result<Self, Failure> {
        let host = Host::read()?;
        let tools = tools::of(command);
        let mut layout = Self {
            allowed: options.allow.clone(),
            is_root: host.is_root,
            wide: places::wide(&host.home, &host.users),
            ..Self::default()
        };
        layout.add_preset(options.preset, &host, &tools)?;
        layout.add_options(options)?;
        layout.deny(options, &host)?;
        layout.add_loaders(&options.allow_exec)?;
        layout.add_peers(options, &host, &tools)?;
        Ok(layout)
    }

    fn add_preset(&mut self, preset: Preset, host: &Host, tools: &[&Tool]) -> Result<(), Failure> {
        let home = || host.home.iter();
        match preset {
            Preset::Agent => self.add_tree(Path::new("/"), "rx")?,
            Preset::Install | Preset::Build | Preset::Strict => {
                for folder in places::SYSTEM.iter().map(Path::new) {
                    self.add_existing(folder, "rx")?;
                }
                // A program looks at the folders above its own.
                self.files.insert("/".to_owned(), BTreeSet::from(['r']));
            }
        }
        if matches!(preset, Preset::Install | Preset::Build) {
            for path in home().flat_map(|home| places::HOME_TOOLS.map(|name| home.join(name))) {
                self.add_existing(&path, "rx")?;
            }
        }
        if preset != Preset::Strict {
            let caches = tools.iter().flat_map(|tool| tool.writes);
            for path in home().flat_map(|home| caches.clone().map(move |(name, _)| home.join(name)))
            {
                self.add_existing(&path, "rwx")?;
            }
            let temporary = std::env::var_os("TMPDIR").map(PathBuf::from);
            let usual = places::TEMPORARY.iter().map(PathBuf::from);
            for path in usual.chain(temporary.filter(|path| path.is_absolute())) {
                self.add_existing(&path, "rwx")?;
            }
        }
        for device in places::DEVICES {
            self.add(device.to_owned(), "rw");
        }
        self.add_tree(&host.folder, "rwx")
    }

    fn add_options(&mut self, options: &BoxOptions) -> Result<(), Failure> {
        if !options.allow_exec.is_empty() {
            // The list of programs replaces what the preset executes.
            for letters in self.files.values_mut() {
                letters.remove(&'x');
            }
        }
        for (paths, letters) in [(&options.allow_read, "r"), (&options.allow_write, "rw")] {
            for path in paths {
                self.add_tree(&absolute(path)?, letters)?;
            }
        }
        for path in &options.allow_exec {
            self.add_tree(&absolute(path)?, "rx")?;
        }
        Ok(())
    }

    /// Denies credentials and other homes, but what options name.
    fn deny(&mut self, options: &BoxOptions, host: &Host) -> Result<(), Failure> {
        let named = [
            &options.allow_read,
            &options.allow_write,
            &options.allow_exec,
        ];
        let named: Result<Vec<_>, _> = named
            .into_iter()
            .flatten()
            .map(|path| absolute(path))
            .collect();
        let mut wanted = named?;
        wanted.push(host.folder.clone());
        let credentials = places::credentials(&host.home, host.is_root);
        let all = credentials
            .into_iter()
            .chain(places::other_homes(&host.users, &host.home));
        for path in all {
            self.denied.extend(places::without(&path, &wanted));
        }
        for path in &options.deny_read {
            self.denied.insert(absolute(path)?);
        }
        let inside = self.denied.iter().find(|path| {
            path.starts_with(&host.folder)
                && !options.deny_read.iter().any(|own| path.ends_with(own))
        });
        match inside {
            None => Ok(()),
            Some(path) => Err(Failure::new(
                Exit::BadInput,
                format!(
                    "cannot guard a command in {}: {} is in it",
                    host.folder.display(),
                    path.display()
                ),
            )
            .help("start it in the folder of a project, which the command may change")),
        }
    }

    fn add_peers(
        &mut self,
        options: &BoxOptions,
        host: &Host,
        tools: &[&Tool],
    ) -> Result<(), Failure> {
        if options.allow.contains(&Allowed::Network) {
            return Ok(());
        }
        let mut peers: BTreeSet<String> = BTreeSet::new();
        let texts = |list: &[&str]| {
            list.iter()
                .map(|peer| (*peer).to_owned())
                .collect::<Vec<_>>()
        };
        peers.extend(texts(&LOOKUPS));
        if options.preset != Preset::Strict {
            peers.extend(texts(&LOOPBACK));
        }
        if matches!(options.preset, Preset::Agent | Preset::Install) {
            peers.extend(texts(&GIT_HOSTS));
            for tool in tools {
                peers.extend(texts(tool.peers));
                peers.extend(
                    host.home
                        .iter()
                        .flat_map(|home| tools::configured(tool, home)),
                );
            }
        }
        for peer in &options.allow_connect {
            let parsed = policy::AllowedPeer::parse(peer).map_err(|problem| {
                Failure::new(
                    Exit::BadInput,
                    format!("cannot use --allow-connect: {problem}"),
                )
                .help("name one peer, such as example.org:443, 10.0.0.0/8:* or unix:/run/x.sock")
            })?;
            peers.insert(parsed.to_string());
        }
        let has_names = peers
            .iter()
            .any(|peer| policy::AllowedPeer::parse(peer).is_ok_and(|peer| peer.has_name()));
        if has_names {
            peers.extend(name_servers());
        }
        self.peers = Some(peers);
        Ok(())
    }

    /// Adds a file or pattern.
    pub(super) fn add(&mut self, path: String, letters: &str) {
        self.files.entry(path).or_default().extend(letters.chars());
    }

    fn add_existing(&mut self, path: &Path, letters: &str) -> Result<(), Failure> {
        match path.symlink_metadata() {
            Ok(_) => self.add_tree(&resolved(path), letters),
            Err(_) => Ok(()),
        }
    }

    /// Adds a file, or a folder with all that is in it.
    fn add_tree(&mut self, path: &Path, letters: &str) -> Result<(), Failure> {
        let text = text(path)?;
        match path.is_dir() {
            true => self.add(format!("{}/**", text.trim_end_matches('/')), letters),
            false => self.add(text, letters),
        }
        Ok(())
    }

    /// Returns true if the box allows a kind of access to a path.
    pub(super) fn allows(&self, path: &Path, letter: char) -> bool {
        let is_denied = self.denied.iter().any(|denied| path.starts_with(denied));
        !is_denied && self.grants(path, letter)
    }

    /// Returns true if the command may change a file, or replace it: it may write the file or its folder. Once all places are
    /// known. Denials count for nothing here, because what is in doubt is taken for the command's.
    pub(super) fn may_change(&self, path: &Path) -> bool {
        let mut both = [Some(path), path.parent()].into_iter().flatten();
        both.any(|path| self.grants(path, 'w'))
    }

    fn grants(&self, path: &Path, letter: char) -> bool {
        let covers = |pattern: &str| match pattern.strip_suffix("/**") {
            Some(folder) => folder.is_empty() || path.starts_with(folder),
            None => path == Path::new(pattern),
        };
        let mut files = self.files.iter();
        files.any(|(pattern, letters)| letters.contains(&letter) && covers(pattern))
    }

    fn denies(&self, what: Allowed) -> bool {
        !self.allowed.contains(&what)
    }

    /// Returns true if only listed programs may be executed.
    pub(super) fn lists_programs(&self) -> bool {
        !self
            .files
            .get("/**")
            .is_some_and(|letters| letters.contains(&'x'))
    }

    /// Writes the policy.
    pub(super) fn policy(&self, is_nested: bool) -> String {
        let caps = if self.is_root { "Caps" } else { "" };
        let mut text = format!(
            "# Made by `tollgate guard`.\npolicy:\n  enforcer: SeccompLandlock{caps}\n  mode: EnhanceProtect\n  \
             enhanceProtect:\n    privileged: true\n    auditViolations: {}\n",
            !is_nested
        );
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    hardeningRules:");
        if self.denies(Allowed::Namespaces) {
            let _ = writeln!(text, "    - disallow-create-user-ns");
        }
        if self.is_root {
            let _ = writeln!(
                text,
                "    - disable-cap-privileged\n    - disallow-debug-disk-device"
            );
        }
        let _ = writeln!(text, "    - disallow-insmod");
        let _ = writeln!(text, "    landlockRawRules:\n      only:");
        for (path, letters) in &self.files {
            let words = [('r', "read"), ('w', "write"), ('x', "exec")];
            let words: Vec<_> = words
                .iter()
                .filter(|(letter, _)| letters.contains(letter))
                .collect();
            let words = words
                .iter()
                .map(|(_, word)| *word)
                .collect::<Vec<_>>()
                .join(", ");
            let _ = writeln!(
                text,
                "      - {{pattern: {}, permissions: [{words}]}}",
                quoted(path)
            );
        }
        self.push_peers(&mut text, is_nested);
        self.push_others(&mut text);
        self.push_calls(&mut text, is_nested);
        text
    }

    fn push_peers(&self, text: &mut String, is_nested: bool) {
        let Some(peers) = self.peers.as_ref().filter(|_| !is_nested) else {
            return;
        };
        let _ = writeln!(text, "    connectRawRules:\n      only:");
        for peer in peers {
            let _ = writeln!(text, "      - {}", quoted(peer));
        }
    }

    fn push_others(&self, text: &mut String) {
        let traces = self.denies(Allowed::Ptrace);
        if traces || !self.denied.is_empty() {
            let _ = writeln!(text, "    bpfRawRules:");
        }
        if traces {
            let _ = writeln!(
                text,
                "      ptrace: {{strictMode: true, permissions: [trace, read]}}"
            );
        }
        if !self.denied.is_empty() {
            let _ = writeln!(text, "      files:");
        }
        for path in &self.denied {
            let pattern = path.to_string_lossy();
            let pattern = if path.is_dir() {
                format!("{pattern}/**")
            } else {
                pattern.into_owned()
            };
            let _ = writeln!(
                text,
                "      - {{pattern: {}, permissions: [contents, write]}}",
                quoted(&pattern)
            );
        }
    }

    fn push_calls(&self, text: &mut String, is_nested: bool) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    syscallRawRules:");
        let _ = writeln!(
            text,
            "    - {{names: [io_uring_setup, io_uring_enter, io_uring_register], action: SCMP_ACT_ERRNO}}"
        );
        if is_nested && self.has_no_hosts() {
            // Inside another box connections are that one's to decide; without sockets there are none.
            for family in DISTANT {
                let _ = writeln!(
                    text,
                    "    - {{names: [socket, socketpair], action: SCMP_ACT_ERRNO, args: [{family}], argsMatch: all}}"
                );
            }
        }
        for request in KEYSTROKES {
            let _ = writeln!(
                text,
                "    - {{names: [ioctl], action: SCMP_ACT_ERRNO, args: [{{index: 1, value: 0xffffffff, valueTwo: {request:#x}, \
                 op: SCMP_CMP_MASKED_EQ}}]}}"
            );
        }
        if self.lists_programs() {
            // A program in memory has no path. The flag says that it will not be executed.
            let _ = writeln!(
                text,
                "    - {{names: [memfd_create], action: SCMP_ACT_ERRNO, args: [{{index: 1, value: 8, valueTwo: 0, \
                 op: SCMP_CMP_MASKED_EQ}}]}}"
            );
        }
    }

    /// Returns true if peers are restricted, and only to Unix sockets.
    fn has_no_hosts(&self) -> bool {
        let peers = self.peers.as_ref();
        peers.is_some_and(|peers| peers.iter().all(|peer| peer.starts_with("unix:")))
    }

    /// The options that allow what rules without a path deny, by rule.
    pub(super) fn options(&self) -> BTreeMap<String, String> {
        let options = [
            ("disallow-create-user-ns", "--allow namespaces"),
            ("bpfRawRules.ptrace", "--allow ptrace"),
            ("connectRawRules.only", "--allow network"),
        ];
        options
            .map(|(rule, option)| (rule.to_owned(), option.to_owned()))
            .into()
    }
}

impl Host {
    fn read() -> Result<Self, Failure> {
        let folder = std::env::current_dir().and_then(|folder| folder.canonicalize());
        let folder = folder.map_err(|error| {
            Failure::new(
                Exit::BadInput,
                format!("cannot guard a command: no working directory: {error}"),
            )
            .help("change to the folder of a project")
        })?;
        let uid = rustix::process::geteuid();
        // Without the file no other home is known but those in /home.
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let variable = std::env::var_os("HOME").map(PathBuf::from);
        let home = places::homes(&users, uid.as_raw(), variable);
        let is_above = |path: &PathBuf| path.starts_with(&folder);
        if let Some(path) = home.iter().find(|home| is_above(home)) {
            let message = format!(
                "cannot guard a command in {}: the command may change the working directory, and {} is in it",
                folder.display(),
                path.display()
            );
            return Err(
                Failure::new(Exit::BadInput, message).help("start it in the folder of a project")
            );
        }
        if folder == Path::new("/") {
            return Err(Failure::new(
                Exit::BadInput,
                "cannot guard a command in /: it may change the working directory",
            )
            .help("start it in the folder of a project"));
        }
        Ok(Self {
            home,
            folder,
            is_root: uid.is_root(),
            users,
        })
    }
}

fn name_servers() -> Vec<String> {
    // Without the file there are no name servers, and the C library asks this host.
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = servers.filter_map(|server| server.trim().parse::<std::net::IpAddr>().ok());
    addresses
        .map(|address| match address.is_ipv6() {
            true => format!("[{address}]:53"),
            false => format!("{address}:53"),
        })
        .collect()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
