//! The command line of `tollgate serve`.

use std::fmt;
#[cfg(feature = "serve")]
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use labels::Selector;

use super::capture_on::CaptureOnOptions;
use super::login::LoginOptions;
use super::queue::QueueOptions;

const SERVER: &str = "Server options";
const STORE: &str = "Store options";
const TARGET: &str = "Options for who gets it";
const HALT: &str = "Options for when it halts";

/// `tollgate serve`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(
    after_help = "Without --tls-cert the collector makes a certificate beside its store, which agents trust by \
                  --collector-ca. Agents need a token, or a certificate with --agent-ca, and programs a token: see `tollgate serve token create`. People use the page \
                  with a browser: the first start prints a link to create an account."
)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) verb: Option<ServeVerb>,
    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6443", help_heading = SERVER)]
    pub(crate) listen: String,
    /// Certificate chain in PEM form [default: a certificate that signs itself]
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = SERVER)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of that certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = SERVER)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Name or address in the certificate that the collector makes; repeatable [default: the hostname,
    /// localhost, 127.0.0.1 and ::1]
    #[arg(long, value_name = "NAME", conflicts_with = "tls_cert", help_heading = SERVER)]
    pub(crate) tls_name: Vec<String>,
    /// Serve HTTP without TLS: tokens can be read on the way
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_name"], help_heading = SERVER)]
    pub(crate) insecure: bool,
    /// Take agents by client certificates of the authorities in FILE, too: by the URI tollgate://CLASS/NAME in them
    #[arg(long, value_name = "FILE", conflicts_with = "insecure", help_heading = SERVER)]
    pub(crate) agent_ca: Option<PathBuf>,
    /// Refuse certificates that the lists in FILE revoke; each issuer needs a list that has not ended
    #[arg(long, value_name = "FILE", requires = "agent_ca", help_heading = SERVER)]
    pub(crate) agent_crl: Option<PathBuf>,
    /// Do not confine the collector: by default the kernel refuses it files, programs, ports and system calls that these
    /// options do not need
    #[arg(long, help_heading = SERVER)]
    pub(crate) no_confine: bool,
    #[command(flatten)]
    pub(crate) login: LoginOptions,
    #[command(flatten)]
    pub(crate) queue: QueueOptions,
    #[command(flatten)]
    pub(crate) captures: CaptureOnOptions,
    #[command(flatten)]
    pub(crate) store: StoreOption,
    /// Delete alerts that are older, as in 90d or 12h [default: keep all]
    #[arg(long, value_name = "TIME", value_parser = span, help_heading = STORE)]
    pub(crate) max_age: Option<Duration>,
    /// Delete the oldest alerts while the store is larger than this many MiB [default: no limit]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30), help_heading = STORE)]
    pub(crate) max_size: Option<u64>,
}

/// Where alerts are kept.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreOption {
    /// Where alerts are kept: sqlite:FILE, or postgres://USER@HOST/DATABASE, whose password can be in PGPASSWORD; of a
    /// server on another machine the certificate is verified, unless ?sslmode= says otherwise
    #[arg(long = "store", value_name = "URL", default_value = "sqlite:/var/lib/tollgate/collector.db",
          value_parser = store, help_heading = STORE)]
    pub(crate) place: StorePlace,
}

/// A database.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "serve"),
    expect(dead_code, reason = "the collector alone opens a store")
)]
pub(crate) enum StorePlace {
    /// A SQLite file.
    File(PathBuf),
    /// A database of a PostgreSQL server, by its URL.
    Server(String),
}

impl StorePlace {
    /// Returns the folder of a file, which the server creates.
    #[cfg(feature = "serve")]
    pub(crate) fn own_folder(&self) -> Option<&Path> {
        matches!(self, Self::File(_)).then(|| self.folder())
    }

    /// Returns the folder for what belongs beside the store, such as the collector's own certificate.
    #[cfg(feature = "serve")]
    pub(crate) fn folder(&self) -> &Path {
        match self {
            Self::File(path) => match path.parent() {
                Some(folder) if folder != Path::new("") => folder,
                _ => Path::new("."),
            },
            Self::Server(_) => Path::new("/var/lib/tollgate"),
        }
    }
}

impl fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            // The URL may have a password.
            Self::Server(_) => f.debug_tuple("Server").finish_non_exhaustive(),
        }
    }
}

/// What `tollgate serve` does besides serving.
#[derive(Debug, Subcommand)]
pub(crate) enum ServeVerb {
    /// Create, list and revoke tokens of agents and readers
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenVerb),
    /// Add, list and remove users of the page
    #[command(subcommand, arg_required_else_help = true)]
    User(UserVerb),
    /// Make, sign, assign and roll back bundles of rules and policies for agents
    #[command(subcommand, arg_required_else_help = true)]
    Bundle(BundleVerb),
    /// Write a copy of the store to a new file, while the collector runs
    Backup(Backup),
    /// Make a new store of a backup
    Restore(Restore),
}

/// `tollgate serve token`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Create a token and print it; it cannot be shown again
    Create(CreateToken),
    /// List tokens, without their secrets
    List(ListTokens),
    /// Revoke a token, and with it all agents that use it
    Revoke(RevokeToken),
}

/// `tollgate serve token create`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("scope").required(true))]
pub(crate) struct CreateToken {
    /// For agents, and other senders of alerts, of this class
    #[arg(long, value_name = "CLASS", group = "scope", value_parser = class)]
    pub(crate) agent_class: Option<String>,
    /// For someone who reads alerts
    #[arg(
        long,
        value_enum,
        group = "scope",
        hide_possible_values = true,
        value_name = "viewer|operator|admin"
    )]
    pub(crate) role: Option<Role>,
    /// Time until the token ends, as in 30d or 12h [default: never]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) expires: Option<Duration>,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// What someone may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    // Without doc comments, as in `policy init`.
    Viewer,
    Operator,
    Admin,
}

/// `tollgate serve token list`.
#[derive(Args, Debug)]
pub(crate) struct ListTokens {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// `tollgate serve token revoke`.
#[derive(Args, Debug)]
pub(crate) struct RevokeToken {
    /// Number of the token
    #[arg(value_name = "NUMBER")]
    pub(crate) number: i64,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// `tollgate serve user`.
#[derive(Debug, Subcommand)]
pub(crate) enum UserVerb {
    /// Add a user
    Add(AddUser),
    /// List users
    List(ListUsers),
    /// Remove a user and end its sessions
    Remove(RemoveUser),
    /// Change a password and end the user's sessions
    Passwd(ChangePassword),
}

/// `tollgate serve user add`.
#[derive(Args, Debug)]
pub(crate) struct AddUser {
    /// Name of the user
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// What the user may do: look, also acknowledge, also manage users
    #[arg(
        long,
        value_enum,
        hide_possible_values = true,
        value_name = "viewer|operator|admin"
    )]
    pub(crate) role: Role,
    #[command(flatten)]
    pub(crate) password: PasswordOption,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// Where a password comes from.
#[derive(Args, Debug)]
pub(crate) struct PasswordOption {
    /// File with the password; `-` is the standard input [default: make one and print it]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

/// `tollgate serve user list`.
#[derive(Args, Debug)]
pub(crate) struct ListUsers {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// `tollgate serve user remove`.
#[derive(Args, Debug)]
pub(crate) struct RemoveUser {
    /// Name of the user
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// `tollgate serve user passwd`.
#[derive(Args, Debug)]
pub(crate) struct ChangePassword {
    /// Name of the user
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) password: PasswordOption,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// `tollgate serve bundle`.
#[derive(Debug, Subcommand)]
pub(crate) enum BundleVerb {
    /// Make a key that signs bundles, and print the public key that agents pin
    Key(BundleKey),
    /// Check rules and policies and put them into a bundle, which is not signed yet
    Create(CreateBundle),
    /// Sign a bundle
    Sign(SignBundle),
    /// Hand a bundle to agents of a class, to those with some labels, or to a part of them
    Assign(AssignBundle),
    /// Hand agents of a class the bundle before; those without --allow-rollback refuse it
    Rollback(RollOut),
    /// End a roll-out: its agents are to have what the next less specific one gives
    Unassign(RollOut),
    /// List bundles, roll-outs, and the bundles that agents are to have
    List(ListBundles),
}

/// `tollgate serve bundle key`.
#[derive(Args, Debug)]
pub(crate) struct BundleKey {
    /// File to write the private key to; it must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// `tollgate serve bundle create`.
#[derive(Args, Debug)]
pub(crate) struct CreateBundle {
    /// Rule files, in the order of loading; without any, agents keep their own rules
    #[arg(value_name = "RULES", required_unless_present = "policies")]
    pub(crate) rules: Vec<PathBuf>,
    /// Policy file: it takes the place of the policy of the same name where `run` or `enforce` starts again; repeatable
    #[arg(long = "policy", value_name = "FILE")]
    pub(crate) policies: Vec<PathBuf>,
    /// Version: agents take no bundle that is not newer
    #[arg(long, value_name = "NUMBER")]
    pub(crate) version: u64,
    /// Setting for the agents, such as outputs.rate=5; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    /// File to write; it must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// `tollgate serve bundle sign`.
#[derive(Args, Debug)]
pub(crate) struct SignBundle {
    /// The bundle; the signature is written into it
    #[arg(value_name = "BUNDLE")]
    pub(crate) bundle: PathBuf,
    /// Private key
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
}

/// `tollgate serve bundle assign`.
#[derive(Args, Debug)]
pub(crate) struct AssignBundle {
    /// The signed bundle
    #[arg(value_name = "BUNDLE")]
    pub(crate) bundle: PathBuf,
    #[command(flatten)]
    pub(crate) target: TargetOption,
    /// Priority among roll-outs for the same agents; at the same priority the selector with the most tests decides
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        allow_negative_numbers = true,
        help_heading = TARGET
    )]
    pub(crate) priority: i32,
    /// Part of the agents that get it, always the same ones; the others keep the bundle before
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100), help_heading = TARGET)]
    pub(crate) percent: u8,
    /// Halt when more agents than this refuse the bundle
    #[arg(long, value_name = "NUMBER", default_value_t = 0, help_heading = HALT)]
    pub(crate) max_failures: u64,
    /// Halt when agents with the bundle lose more than this each [default: no limit]
    #[arg(long, value_name = "NUMBER", help_heading = HALT)]
    pub(crate) max_losses: Option<u64>,
    /// Halt when agents with the bundle send more alerts than this each in a minute [default: no limit]
    #[arg(long, value_name = "NUMBER", help_heading = HALT)]
    pub(crate) max_alerts: Option<u64>,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// The agents that a roll-out is for.
#[derive(Args, Debug)]
pub(crate) struct TargetOption {
    /// Class of the agents
    #[arg(long, value_name = "CLASS", value_parser = class, help_heading = TARGET)]
    pub(crate) agent_class: String,
    /// Labels of the agents, as in Kubernetes: tier=db,zone in (a,b),!canary [default: all agents of the class]
    #[arg(long, value_name = "SELECTOR", help_heading = TARGET)]
    pub(crate) selector: Option<Selector>,
}

#[cfg(feature = "serve")]
impl From<&TargetOption> for store::Target {
    fn from(option: &TargetOption) -> Self {
        match &option.selector {
            Some(selector) => Self {
                class: option.agent_class.clone(),
                selector: selector.clone(),
            },
            None => Self::class(&option.agent_class),
        }
    }
}

/// `tollgate serve bundle unassign` and `tollgate serve bundle rollback`: a roll-out, by its agents.
#[derive(Args, Debug)]
pub(crate) struct RollOut {
    #[command(flatten)]
    pub(crate) target: TargetOption,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// `tollgate serve bundle list`.
#[derive(Args, Debug)]
pub(crate) struct ListBundles {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// `tollgate serve backup`.
#[derive(Args, Debug)]
pub(crate) struct Backup {
    /// File to write; it must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

/// `tollgate serve restore`.
#[derive(Args, Debug)]
pub(crate) struct Restore {
    /// Backup to read
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}

fn store(text: &str) -> Result<StorePlace, &'static str> {
    let is_server = ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| text.starts_with(scheme));
    match text.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => Ok(StorePlace::File(PathBuf::from(path))),
        None if is_server => Ok(StorePlace::Server(text.to_owned())),
        _ => Err("expected sqlite:FILE or postgres://USER@HOST/DATABASE"),
    }
}

fn class(text: &str) -> Result<String, &'static str> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=64).contains(&text.len()) && text.chars().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err("expected up to 64 letters, digits, `-`, `_` and `.`"),
    }
}

/// Parses a number with a unit: s, m, h or d.
pub(super) fn span(text: &str) -> Result<Duration, &'static str> {
    let wrong = "expected a number and a unit, as in 30d, 12h, 5m or 10s";
    let unit = text.chars().last().ok_or(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong),
    };
    let number: u32 = text[..text.len() - 1].parse().map_err(|_error| wrong)?;
    match number {
        0 => Err(wrong),
        number => Ok(Duration::from_secs(u64::from(number) * seconds)),
    }
}
