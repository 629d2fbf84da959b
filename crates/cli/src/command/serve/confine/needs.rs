//! What the collector needs of the machine, by its options: files, folders and ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use outputs::NatsOutput;
use rule_tools::RuleFiles;
use serve::Address;
use store::{Needs as Server, PostgresStore, StoreError};

use super::super::args::{Serve, StorePlace};

/// Folders that hold the files of others, too. Of these, no more than the file that an option names is granted.
pub(super) const WIDE: [&str; 22] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt",
    "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/var/lib",
    "/var/tmp",
];

/// Files that the C library and the asynchronous runtime look at, as far as they exist.
const SYSTEM: [&str; 13] = [
    "/dev/urandom",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/run/NetworkManager/**",
    "/run/systemd/resolve/**",
    "/sys/devices/system/cpu/**",
    "/sys/fs/cgroup/**",
    "/usr/share/zoneinfo/**",
];

/// Libraries that the C library loads to look up names.
const LIBRARIES: [&str; 8] = [
    "/etc/ld.so.cache",
    "/lib/**",
    "/lib64/**",
    "/usr/lib/**",
    "/usr/lib64/**",
    "/usr/local/lib/**",
    "/nix/store/**",
    "/gnu/store/**",
];

/// Authorities that the system trusts, and what links in the folders of them lead to.
const AUTHORITIES: [&str; 13] = [
    "/etc/ca-certificates/**",
    "/etc/pki/ca-trust/**",
    "/etc/pki/tls/certs/**",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/**",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-certificates.crt",
    "/usr/lib/ssl/**",
    "/usr/local/share/ca-certificates/**",
    "/usr/share/ca-certificates/**",
    "/var/lib/ca-certificates/**",
];

/// Variables that name other authorities than those.
const AUTHORITY_VARIABLES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Port of HTTPS.
const HTTPS: u16 = 443;
/// Port of the DNS, for answers that do not fit into a datagram.
const DNS: u16 = 53;

/// What the collector needs.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Patterns of files, each with whether it is written. A folder has `/**` after it.
    pub(super) files: BTreeMap<String, bool>,
    /// Files of folders that belong to others, too.
    pub(super) alone: BTreeSet<PathBuf>,
    /// Folders with files of others that are written.
    pub(super) wide: BTreeSet<PathBuf>,
    /// The TCP port to listen on; `None` with a socket in the file system.
    pub(super) listens: Option<u16>,
    /// TCP ports to connect to.
    pub(super) connects: BTreeSet<u16>,
    /// Sockets in the file system are made or connected to.
    pub(super) has_sockets: bool,
    /// Names are looked up by DNS.
    pub(super) has_names: bool,
    /// Names are looked up, and be it in a file, for which older C libraries load a library.
    has_hosts: bool,
}

impl Needs {
    /// Returns what these options need.
    ///
    /// # Errors
    ///
    /// A path cannot be a pattern of a policy, or the URL of the database is wrong.
    pub(super) fn of(args: &Serve, listen: &Address) -> Result<Self, Failure> {
        let mut needs = Self::default();
        needs.add_system()?;
        needs.add_listener(listen)?;
        needs.add_store(args)?;
        needs.add_queue(&args.queue.servers())?;
        if let Some(issuer) = &args.login.oidc_issuer {
            let (host, port) = host_and_port(issuer);
            // The provider names its other addresses itself, often by another host.
            needs.connects.extend([port.unwrap_or(HTTPS), HTTPS]);
            needs.look_up(host);
        }
        // Read once.
        for file in [&args.tls_cert, &args.tls_key].into_iter().flatten() {
            needs.read(file, false)?;
        }
        let named = [&args.agent_ca, &args.agent_crl, &args.login.oidc_ca];
        for file in named.into_iter().flatten() {
            needs.read_around(file)?;
        }
        if !needs.connects.is_empty() {
            needs.add_authorities()?;
        }
        needs.add_rules()?;
        if needs.has_names {
            needs.connects.insert(DNS);
        }
        if needs.has_names || needs.has_hosts {
            needs.read_all(&LIBRARIES)?;
        }
        Ok(needs)
    }

    fn add_system(&mut self) -> Result<(), Failure> {
        self.read_all(&SYSTEM)?;
        self.add("/dev/null".to_owned(), true);
        // `/proc/self` leads there. Names of functions in a report of a defect are in the program.
        self.add(format!("/proc/{}/**", std::process::id()), false);
        match std::env::current_exe() {
            Ok(program) => self.read(&program, false),
            Err(_) => Ok(()),
        }
    }

    fn add_listener(&mut self, listen: &Address) -> Result<(), Failure> {
        match listen {
            Address::Unix(path) => {
                self.has_sockets = true;
                self.write_folder(folder_of(path))
            }
            Address::Tcp(address) => {
                let (host, port) = host_and_port(address);
                self.listens = port;
                self.look_up(host);
                Ok(())
            }
        }
    }

    fn add_store(&mut self, args: &Serve) -> Result<(), Failure> {
        let folder = args.store.place.folder();
        match &args.store.place {
            StorePlace::File(path) => {
                self.write_folder(folder)?;
                // SQLite follows a link, and puts its log beside what it leads to.
                match path.canonicalize() {
                    Ok(real) => self.write_folder(folder_of(&real)),
                    Err(_) => Ok(()),
                }
            }
            StorePlace::Server(url) => {
                let Server {
                    ports,
                    has_socket,
                    has_name,
                    files,
                } = PostgresStore::needs(url).map_err(|error| wrong_url(&error))?;
                self.connects.extend(ports);
                self.has_sockets |= has_socket;
                self.has_names |= has_name;
                for file in &files {
                    self.read_around(file)?;
                }
                // The certificate that the collector made.
                match args.tls_cert.is_none() && !args.insecure {
                    true => self.add_folder(folder, false),
                    false => Ok(()),
                }
            }
        }
    }

    fn add_queue(&mut self, servers: &NatsOutput) -> Result<(), Failure> {
        for (host, port) in servers.hosts() {
            self.connects.insert(port);
            self.look_up(&host);
        }
        let files = [
            &servers.password_file,
            &servers.token_file,
            &servers.credentials_file,
            &servers.tls.ca_file,
            &servers.tls.cert_file,
            &servers.tls.key_file,
        ];
        // Empty is none.
        let mut files = files
            .into_iter()
            .filter(|file| !file.as_os_str().is_empty());
        files.try_for_each(|file| self.read_around(file))
    }

    fn add_authorities(&mut self) -> Result<(), Failure> {
        self.read_all(&AUTHORITIES)?;
        let named = AUTHORITY_VARIABLES.iter().filter_map(std::env::var_os);
        for path in named.flat_map(|paths| std::env::split_paths(&paths).collect::<Vec<_>>()) {
            self.read_path(&path)?;
        }
        Ok(())
    }

    /// The rules that the page proposes exceptions from. A configuration that cannot be read grants nothing: who asks for an
    /// exception is told why.
    fn add_rules(&mut self) -> Result<(), Failure> {
        let paths = RuleFiles::default().paths();
        let paths = paths.unwrap_or_else(|_| vec![PathBuf::from(config::places::FOLDER)]);
        paths.iter().try_for_each(|path| self.read_path(path))
    }

    /// Notes a host that has to be looked up. `localhost` is in /etc/hosts, or nobody asks a server about it.
    fn look_up(&mut self, host: &str) {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_number = bare.parse::<IpAddr>().is_ok();
        self.has_hosts |= !is_number;
        self.has_names |= !is_number && !bare.eq_ignore_ascii_case("localhost");
    }

    fn read_all(&mut self, patterns: &[&str]) -> Result<(), Failure> {
        for pattern in patterns {
            match pattern.strip_suffix("/**") {
                Some(folder) => self.add_folder(Path::new(folder), false)?,
                None => self.read(Path::new(pattern), true)?,
            }
        }
        Ok(())
    }

    /// Reads a file or folder that is named, and what comes to be there later.
    fn read_path(&mut self, path: &Path) -> Result<(), Failure> {
        match path.is_dir() {
            true => self.add_folder(path, false),
            false => self.read_around(path),
        }
    }

    /// Reads a file. A link leads to another, with what is beside that if `is_around`.
    fn read(&mut self, file: &Path, is_around: bool) -> Result<(), Failure> {
        match file.canonicalize() {
            Ok(real) if is_around && real != file => self.read_around(&real),
            Ok(real) => {
                self.add(text(&real)?, false);
                Ok(())
            }
            // There is none.
            Err(_) => Ok(()),
        }
    }

    /// Reads a file, and the folder that a new one of its name is renamed into; the same of what it leads to.
    fn read_around(&mut self, file: &Path) -> Result<(), Failure> {
        let real = file.canonicalize();
        for path in [Ok(file.to_owned()), real].into_iter().flatten() {
            let folder = folder_of(&path);
            let resolved = folder.canonicalize();
            // A folder that does not exist grants nothing, and is not named by an option that is good.
            let Ok(resolved) = resolved else { continue };
            match is_wide(&resolved) {
                false => self.add_folder(&resolved, false)?,
                true if path.exists() => {
                    self.alone.insert(path.clone());
                    self.read(&path, false)?;
                }
                true => {}
            }
        }
        Ok(())
    }

    /// Writes a folder: SQLite makes files beside the store, and a socket is made.
    fn write_folder(&mut self, folder: &Path) -> Result<(), Failure> {
        if let Ok(real) = folder.canonicalize() {
            if real == Path::new("/") {
                let message = "cannot confine the collector: its store or its socket is in /, so everything would be granted";
                return Err(Failure::new(Exit::BadInput, message)
                    .help("put it into a folder of its own, or start with --no-confine"));
            }
            if is_wide(&real) {
                self.wide.insert(real);
            }
        }
        self.add_folder(folder, true)
    }

    /// A folder with all that is in it, if there is one.
    fn add_folder(&mut self, folder: &Path, writes: bool) -> Result<(), Failure> {
        if let Ok(real) = folder.canonicalize() {
            let text = text(&real)?;
            self.add(format!("{}/**", text.trim_end_matches('/')), writes);
        }
        Ok(())
    }

    fn add(&mut self, pattern: String, writes: bool) {
        *self.files.entry(pattern).or_default() |= writes;
    }
}

/// Returns true if a folder holds files of others, too: one of the system, or a home.
fn is_wide(folder: &Path) -> bool {
    let is_home = folder.parent() == Some(Path::new("/home"))
        || std::env::var_os("HOME").is_some_and(|home| folder == Path::new(&home));
    is_home || WIDE.iter().any(|wide| folder == Path::new(wide))
}

fn wrong_url(error: &StoreError) -> Failure {
    Failure::from_error(Exit::BadInput, error).help("name it as postgres://USER@HOST/DATABASE")
}

/// The folder of a file; that of a bare name is the working directory.
fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Host and port of an URL, or of `HOST:PORT`.
fn host_and_port(url: &str) -> (&str, Option<u16>) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let (host, port) = match place.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        _ => (place, None),
    };
    // An empty host is every address of this machine.
    (if host.is_empty() { "0.0.0.0" } else { host }, port)
}

/// The path as a policy can say it.
fn text(path: &Path) -> Result<String, Failure> {
    let is_unfit = |c: char| c.is_control() || matches!(c, '*' | '"' | '\\');
    let text = path.to_str().filter(|text| !text.contains(is_unfit));
    text.map(str::to_owned).ok_or_else(|| {
        let message = format!(
            "cannot confine the collector: no policy can name {}, which has a character that is not plain",
            path.display()
        );
        Failure::new(Exit::BadInput, message).help("rename it, or start with --no-confine")
    })
}
