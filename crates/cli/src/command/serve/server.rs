//! The server itself, its backup and its restoration.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use collector::{Collector, Exception, ProposeException, Settings, first_link, own_certificate};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use rule_tools::RuleFiles;
use rule_tools::silence::propose;
use rules::Level;
use serve::{Address, ClientAuthorities, ClientCertificates, ServerFiles};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use store::{PostgresStore, SqliteStore, Store, StoreError};

use super::args::{Backup, Restore, Serve, StorePlace};
use super::confine::confine;
use super::tokens::actor;
use super::{clauses, provider};

/// Serves until a signal ends it.
pub(super) fn serve(args: Serve) -> Outcome {
    let listen = Address::parse(&args.listen).map_err(|error| bad(&error))?;
    let files = files(&args)?;
    let oidc = provider::settings(&args.login)?;
    let capture_on = args.captures.told().map_err(|error| {
        bad(&error).help("--capture-on priority=PRIORITY includes all rules of that priority")
    })?;
    if let Some(folder) = args.store.place.own_folder() {
        create(folder).map_err(|error| cannot_create(folder, &error))?;
    }
    if let Address::Unix(socket) = &listen
        && let Some(folder) = socket.parent()
    {
        // Afterwards no folder is made outside of those that there are.
        std::fs::create_dir_all(folder).map_err(|error| cannot_create(folder, &error))?;
    }
    // Before the store starts threads.
    let confined = confine(&args, &listen)?;
    let store = open(&args.store.place, true)?;
    let trusted = args
        .tls_cert
        .is_none()
        .then(|| files.as_ref().map(|f| f.certificates.clone()));
    // Before there are threads, so that no signal is lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| {
        Failure::new(Exit::Internal, format!("cannot handle signals: {error}"))
            .help("report this as a defect")
    })?;
    let settings = Settings {
        listen,
        files,
        max_age: args.max_age,
        max_bytes: args.max_size.map(|size| size << 20),
        propose: Some(exceptions()),
        explain: Some(clauses::explanation()),
        browse: Some(Arc::new(|capture, query| replay::browse(capture, query))),
        capture_on,
        oidc,
        queue: args.queue.settings(),
    };
    let collector = Collector::start(settings, Arc::clone(&store))
        .map_err(|error| bad(&error).help("see `tollgate help serve`"))?;
    announce(&args, &collector, trusted.flatten().as_deref(), &*store)?;
    terminal::complain(&confined);
    let _ = signals.forever().next();
    // Answers what is being asked, then waits for the last commit.
    drop(collector);
    Ok(Exit::Ok)
}

/// Says where the collector listens, and what a first start needs.
fn announce(
    args: &Serve,
    collector: &Collector,
    trusted: Option<&Path>,
    store: &dyn Store,
) -> Result<(), Failure> {
    let scheme = if args.insecure { "http" } else { "https" };
    let at = match collector.address() {
        Some(address) => format!("{scheme}://{address}"),
        None => args.listen.clone(),
    };
    terminal::complain(&format!("tollgate: collecting at {at}; Ctrl-C stops\n"));
    if let Some(path) = trusted {
        let path = path.display();
        terminal::complain(&format!(
            "tollgate: agents trust {path} by --collector-ca\n"
        ));
    }
    if args.insecure {
        terminal::complain(
            "tollgate: warning: without TLS everybody on the way can read tokens, passwords and alerts\n",
        );
    }
    let has_token = !store.tokens().map_err(|error| broken(&error))?.is_empty();
    if !has_token && args.agent_ca.is_none() {
        terminal::complain(
            "tollgate: there is no token, so no agent can send\nhelp: tollgate serve token create --agent-class default\n",
        );
    }
    let link = first_link(store, &actor()).map_err(|error| bad(&error))?;
    if let Some(path) = link {
        terminal::complain(&format!(
            "tollgate: there is no user; create the first one, an administrator, within 24 hours at\n  {at}{path}\n"
        ));
    }
    Ok(())
}

/// Returns what proposes exceptions to the page: the same as `tollgate rules silence`, with the rules that
/// `tollgate run` loads on this machine.
fn exceptions() -> ProposeException {
    Arc::new(|alert| {
        let rules = RuleFiles {
            level: Some(Level::Forensic),
            ..RuleFiles::default()
        };
        let proposed = propose(alert, &rules).map_err(|failure| failure.message().to_owned())?;
        let exceptions = proposed.into_iter().map(|proposed| Exception {
            condition: proposed.condition,
            still_detected: proposed.still_detected,
            file: proposed.file,
        });
        Ok(exceptions.collect())
    })
}

/// Returns the certificate of the server, and makes it if none is given.
fn files(args: &Serve) -> Result<Option<ServerFiles>, Failure> {
    if args.insecure {
        return Ok(None);
    }
    if let (Some(certificates), Some(key)) = (&args.tls_cert, &args.tls_key) {
        return Ok(Some(ServerFiles {
            certificates: certificates.clone(),
            key: key.clone(),
            clients: clients(args),
        }));
    }
    let names = match args.tls_name.is_empty() {
        true => own_names(),
        false => args.tls_name.clone(),
    };
    let folder = args.store.place.folder();
    create(folder).map_err(|error| cannot_create(folder, &error))?;
    let made = own_certificate(folder, &names).map_err(|error| {
        Failure::from_error(Exit::BadInput, &error)
            .help("name another with --tls-cert and --tls-key")
    })?;
    Ok(Some(ServerFiles {
        clients: clients(args),
        ..made
    }))
}

/// Returns what the collector asks of certificates of agents.
fn clients(args: &Serve) -> ClientCertificates {
    match &args.agent_ca {
        None => ClientCertificates::Ignored,
        Some(authorities) => ClientCertificates::Optional(ClientAuthorities {
            certificates: authorities.clone(),
            revocations: args.agent_crl.clone(),
            report: |problem| {
                terminal::complain(&format!("tollgate: warning: {problem}\n"));
            },
        }),
    }
}

fn own_names() -> Vec<String> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let fixed = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    // A name that a certificate cannot have is left out; the fixed ones stay.
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let host = Some(host).filter(|host| !host.is_empty() && host.chars().all(is_name));
    host.into_iter().chain(fixed).collect()
}

/// Opens the store. Only the server creates a file, and its folder.
pub(super) fn open(place: &StorePlace, creates: bool) -> Result<Arc<dyn Store>, Failure> {
    let path = match place {
        StorePlace::File(path) => path,
        StorePlace::Server(url) => {
            let opened = PostgresStore::open(url).map_err(|error| broken(&error))?;
            if let Some(risk) = opened.risk() {
                terminal::complain(&format!("tollgate: warning: {risk}\n"));
            }
            return Ok(opened.into());
        }
    };
    if creates {
        create(place.folder()).map_err(|error| cannot_create(place.folder(), &error))?;
    } else if !path.exists() {
        let message = format!(
            "cannot open the store {}: it does not exist",
            path.display()
        );
        return Err(Failure::new(Exit::BadInput, message)
            .help("name it with --store, or start `tollgate serve`, which creates it"));
    }
    let opened = SqliteStore::open(path).map_err(|error| broken(&error));
    Ok(opened?.into())
}

/// Creates a folder for its owner alone.
fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn cannot_create(folder: &Path, error: &io::Error) -> Failure {
    let folder = folder.display();
    Failure::new(
        Exit::BadInput,
        format!("cannot create the folder {folder}: {error}"),
    )
    .help("name another with --store sqlite:FILE")
}

pub(super) fn broken(error: &StoreError) -> Failure {
    let failure = Failure::from_error(Exit::BadInput, error);
    match error {
        StoreError::Newer { .. } => {
            failure.help("start the newer build, or restore an older backup")
        }
        StoreError::Damaged { .. } => {
            failure.help("restore another backup with `tollgate serve restore`")
        }
        StoreError::Exists { .. } => failure.help("name a file that does not exist"),
        StoreError::Elsewhere { .. } => failure.help("use pg_dump and pg_restore"),
        StoreError::Server(_) | StoreError::Silent { .. } => {
            failure.help("see whether the server runs, and lets this user in")
        }
        StoreError::Encryption { .. } => failure.help(
            "sslrootcert=FILE in --store names the authority of the server's certificate, sslmode what is verified",
        ),
        StoreError::Pem { .. } => failure.help("see sslrootcert, sslcert and sslkey in --store"),
        StoreError::Url { .. } => failure.help("name it as postgres://USER@HOST/DATABASE"),
        _ => failure.help("name another with --store sqlite:FILE"),
    }
}

fn bad(error: &dyn std::error::Error) -> Failure {
    Failure::from_error(Exit::BadInput, error)
}

/// Writes a backup.
pub(super) fn backup(args: &Backup) -> Outcome {
    let store = open(&args.store.place, false)?;
    store.backup(&args.file).map_err(|error| broken(&error))?;
    terminal::print(&format!("wrote {}\n", args.file.display()))
}

/// Makes a store of a backup.
pub(super) fn restore(args: &Restore) -> Outcome {
    let StorePlace::File(path) = &args.store.place else {
        return Err(broken(&StoreError::Elsewhere { action: "restore" }));
    };
    SqliteStore::restore(&args.file, path).map_err(|error| broken(&error))?;
    terminal::print(&format!("restored {}\n", path.display()))
}
