//! Bundles of rules and policies that a collector hands down.
//!
//! The last one that was good stays on disk, so that the agent starts with it when there is no collector. What is on disk
//! is believed no more than what arrives: its signature is verified each time.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bundle::{Content, File, PublicKey, Signed};
use config::Config;
use config::rule_files::NoSink;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::EngineKind;
use outputs::{BundleReport, BundledPolicy, BundledPolicyState, CollectorOutput, Dispatcher};
use policy::compile::seccomp::Profile;
use seccomp::Denials;

use crate::bundle_policies::{PolicyRefusal, PolicyTaker};
use crate::digest::sha256;
use crate::settings::{compile, engine_options};

/// Folder of bundles in that of the spools.
const FOLDER: &str = "bundles";

/// Bits of a mode by which others than the owner can write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Largest file of a bundle.
const MAX_FILE: u64 = 8 << 20;

/// A bundle whose signature is good.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub(super) content: Content,
    pub(super) digest: String,
    text: String,
}

/// Where the last good bundle of an agent is, and which key it has to be signed with.
#[derive(Clone, Debug)]
pub(super) struct BundleFolder {
    folder: PathBuf,
    key: PublicKey,
    least: u64,
    allows_older: bool,
    allows_looser: bool,
}

impl BundleFolder {
    /// Returns `None` if no key is pinned.
    pub(super) fn of(output: &CollectorOutput) -> Result<Option<Self>, Failure> {
        if !output.enabled || output.bundle_key.as_os_str().is_empty() {
            return Ok(None);
        }
        let path = &output.bundle_key;
        let wrong = |problem: String| {
            let path = path.display();
            let message = format!("cannot read the key of bundles {path}: {problem}");
            Failure::new(Exit::BadInput, message)
                .help("`tollgate serve bundle key` makes one, and prints what agents pin")
        };
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let key = PublicKey::parse(&text).map_err(|error| wrong(error.to_string()))?;
        // Agents of one host share spools, not bundles: each collector, class and key has its own.
        let credential = match output.cert_file.as_os_str().is_empty() {
            true => output.token_file.display(),
            false => output.cert_file.display(),
        };
        let whose = format!("{}\n{credential}\n{}", output.url, key.to_text());
        let whose = sha256(whose.as_bytes());
        let folder = output.spool_folder().join(FOLDER).join(&whose[..16]);
        Ok(Some(Self {
            folder,
            key,
            least: output.bundle_min_version,
            allows_older: output.allow_rollback,
            allows_looser: output.allow_loosening,
        }))
    }

    fn path(&self) -> PathBuf {
        self.folder.join("last.json")
    }

    /// Returns the last good bundle, `None` if there was none, or why it is not believed.
    pub(super) fn last_good(&self) -> Result<Option<Accepted>, String> {
        let Some(text) = self.read().map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        self.accept(text).map(Some)
    }

    fn read(&self) -> io::Result<Option<String>> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        let file = match options.open(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let own = rustix::process::geteuid().as_raw();
        for (what, meta) in [
            ("folder", fs::metadata(&self.folder)?),
            ("file", file.metadata()?),
        ] {
            let path = self.folder.display();
            if meta.uid() != own {
                let owner = meta.uid();
                return Err(io::Error::other(format!(
                    "user {owner} owns the {what} of {path}"
                )));
            }
            if meta.mode() & WRITABLE_BY_OTHERS != 0 {
                return Err(io::Error::other(format!(
                    "others can write the {what} of {path}"
                )));
            }
        }
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    /// Returns what there is to report about the last bundle where this configuration is in force.
    fn report(&self, config: &Config, with: &ConfigWith, taker: &PolicyTaker) -> BundleReport {
        let refused = |digest, problem| BundleReport {
            refused: Some((digest, problem)),
            ..BundleReport::default()
        };
        let last = match self.last_good() {
            Ok(None) => return BundleReport::default(),
            Ok(Some(last)) => last,
            // Nobody can say which one it was.
            Err(problem) => return refused(String::new(), problem),
        };
        // Checked already, as it is in force: compiling takes a while.
        let is_of = |(file, (name, text)): (&File, &(String, String))| {
            (&file.name, &file.text) == (name, text)
        };
        let is_used = !last.content.rules.is_empty()
            && config.bundled_rules.len() == last.content.rules.len()
            && last
                .content
                .rules
                .iter()
                .zip(&config.bundled_rules)
                .all(is_of);
        let checked = match is_used {
            true => Ok(()),
            false => with(&last.content).and_then(|config| check(&config)),
        };
        // The policy of a bundle is in force whether or not its rules are.
        let policies = taker.report(&last.content);
        let of_policy = policies.iter().find_map(|policy| match &policy.state {
            BundledPolicyState::Refused(why) => Some(format!("policy {}: {why}", policy.name)),
            _ => None,
        });
        let problem = checked.as_ref().err().map(said).or(of_policy);
        BundleReport {
            in_force: match checked {
                Ok(()) => Some((last.content.version, last.digest.clone())),
                Err(_) => None,
            },
            refused: problem.map(|problem| (last.digest, problem)),
            policies,
        }
    }

    /// Verifies the signature, and that the version is one that the agent may take.
    fn accept(&self, text: String) -> Result<Accepted, String> {
        let verified = self.verify(text)?;
        let version = verified.content.version;
        if version < self.least {
            return Err(format!(
                "version {version} is older than {}, the first that this agent takes (--bundle-min-version)",
                self.least
            ));
        }
        Ok(verified)
    }

    fn verify(&self, text: String) -> Result<Accepted, String> {
        let signed = Signed::parse(&text).map_err(|error| error.to_string())?;
        let content = signed
            .verify(&self.key)
            .map_err(|error| error.to_string())?;
        Ok(Accepted {
            content,
            digest: signed.digest(),
            text,
        })
    }

    /// Returns the last bundle, with which the policies of a new one are compared, whatever version the agent may take.
    ///
    /// # Errors
    ///
    /// It cannot be read, and nobody allows the policies of the new one to be looser.
    fn before(&self, new: &Content) -> Result<Option<Content>, String> {
        let read = self.read().map_err(|error| error.to_string());
        let last = read.and_then(|text| text.map(|text| self.verify(text)).transpose());
        match last {
            Ok(last) => Ok(last.map(|last| last.content)),
            Err(_) if self.allows_looser || new.policies.is_empty() => Ok(None),
            Err(why) => Err(format!(
                "its policies cannot be compared with those of the last bundle, {}: {why}; agents with \
                 --allow-loosening take it",
                self.path().display()
            )),
        }
    }

    /// Replaces the last good bundle, or removes it. Whoever reads meanwhile finds the one or the other.
    pub(super) fn keep(&self, text: Option<&str>) -> io::Result<()> {
        let Some(text) = text else {
            return fs::remove_file(self.path());
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let new = self.folder.join(format!("new-{}.json", std::process::id()));
        // What a process that was killed left has to be no link.
        let _ = fs::remove_file(&new);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, self.path())?;
        sync(&self.folder)
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// Checks that an agent of this build can start with this configuration: the rules compile, and so does their filter.
pub(super) fn check(config: &Config) -> Result<(), Failure> {
    let mut loaded = config.rule_sources().load();
    loaded.select(&config.rules);
    let (_engine, plan) = loaded.compile(&engine_options(config, None), NoSink);
    loaded.usable()?;
    for engine in [EngineKind::Notify, EngineKind::Ptrace] {
        compile(
            &plan,
            &Profile::default(),
            engine,
            Denials::InKernel,
            config,
        )?;
    }
    Ok(())
}

/// Returns a failure in one line, as it is reported.
pub(super) fn said(failure: &Failure) -> String {
    failure.render().trim_end().replace('\n', " ")
}

/// Returns the configuration of an agent with what a bundle says.
pub(super) type ConfigWith = Box<dyn Fn(&Content) -> Result<Config, Failure> + Send + Sync>;

/// Puts the configuration of the files and of the last good bundle into force.
pub(super) type Reload = Box<dyn Fn() -> Result<(), Failure> + Send>;

/// What is reported about the bundle of an agent.
#[derive(Clone)]
pub(super) struct BundleRecord(Option<Arc<Recorded>>);

struct Recorded {
    report: Mutex<BundleReport>,
    /// Is asked why a bundle is not in force.
    with: ConfigWith,
    taker: PolicyTaker,
}

impl BundleRecord {
    /// Returns the record of the bundle that the agent has started with.
    pub(super) fn of(config: &Config, with: ConfigWith, taker: PolicyTaker) -> Self {
        let Ok(Some(folder)) = BundleFolder::of(&config.outputs.collector) else {
            return Self(None);
        };
        let report = Mutex::new(folder.report(config, &with, &taker));
        Self(Some(Arc::new(Recorded {
            report,
            with,
            taker,
        })))
    }

    /// Records the bundle after this configuration has come into force. Returns why the last bundle is not in force, if that
    /// is new.
    pub(super) fn renew(&self, config: &Config) -> Option<String> {
        let record = self.0.as_ref()?;
        let folder = BundleFolder::of(&config.outputs.collector).ok().flatten();
        let mut new = folder.map_or_else(BundleReport::default, |folder| {
            folder.report(config, &record.with, &record.taker)
        });
        let before = self.report().unwrap_or_default();
        let problem = new
            .refused
            .clone()
            .filter(|_| new.refused != before.refused);
        if new.refused.is_none() {
            let in_force = new.in_force.as_ref().map(|(_, digest)| digest);
            // A bundle that was refused when it arrived is not to come again, unless it is the one in force now.
            let is_other =
                |(digest, _): &(String, String)| !digest.is_empty() && Some(digest) != in_force;
            new.refused = before.refused.filter(is_other);
        }
        self.set(new);
        problem.map(|(_, problem)| problem)
    }

    /// Ends what is said about bundles before this one, if the reload has put it into force: a collector counts an agent that
    /// names a refusal as one that refuses.
    fn adopted(&self, digest: &str) {
        let report = self.report().unwrap_or_default();
        if report.in_force.as_ref().is_some_and(|(_, it)| it == digest) {
            self.set(BundleReport {
                refused: None,
                ..report
            });
        }
    }

    /// Returns the report, `None` if the agent takes no bundles.
    pub(super) fn report(&self) -> Option<BundleReport> {
        let record = self.0.as_ref()?;
        let report = record.report.lock();
        Some(report.unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn set(&self, report: BundleReport) {
        if let Some(record) = &self.0 {
            *record.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
        }
    }
}

/// Takes bundles, one after the other, on a thread of its own.
pub(super) struct Receiving {
    pub(super) folder: BundleFolder,
    pub(super) config: ConfigWith,
    pub(super) reload: Reload,
    pub(super) record: BundleRecord,
    pub(super) taker: PolicyTaker,
    pub(super) dispatcher: Dispatcher,
}

/// Why a bundle is refused.
struct Refusal {
    problem: String,
    /// The policy of it that is why.
    policy: Option<BundledPolicy>,
}

impl From<String> for Refusal {
    fn from(problem: String) -> Self {
        Self {
            problem,
            policy: None,
        }
    }
}

impl From<PolicyRefusal> for Refusal {
    fn from(PolicyRefusal { problem, policy }: PolicyRefusal) -> Self {
        Self { problem, policy }
    }
}

impl Receiving {
    /// Has the channels of collectors pass bundles on.
    pub(super) fn start(self) -> io::Result<()> {
        let (sender, receiver) = sync_channel::<String>(1);
        let dispatcher = self.dispatcher.clone();
        thread::Builder::new()
            .name("bundles".to_owned())
            .spawn(move || self.work(&receiver))?;
        // Without a wait: a reload may wait for the channel that calls.
        dispatcher.take_bundles(Box::new(move |text| sender.try_send(text).is_ok()));
        Ok(())
    }

    fn work(&self, bundles: &Receiver<String>) {
        while let Ok(text) = bundles.recv() {
            let digest = Signed::parse(&text).map_or_else(|_| String::new(), |it| it.digest());
            let before = self.record.report().unwrap_or_default();
            match self.adopt(text) {
                Ok(()) => self.record.adopted(&digest),
                Err(Refusal { problem, policy }) => {
                    let kept = self.folder.last_good().ok().flatten();
                    let kept = kept.map(|kept| self.taker.report(&kept.content));
                    let policies = kept.into_iter().flatten().chain(policy).collect();
                    self.record.set(BundleReport {
                        refused: Some((digest, problem)),
                        policies,
                        ..before
                    });
                }
            }
            self.dispatcher.report_again();
        }
    }

    /// Puts a bundle into force, or says why not; then what was in force stays.
    fn adopt(&self, text: String) -> Result<(), Refusal> {
        let new = self.folder.accept(text)?;
        let last = self.folder.last_good();
        // Without the last one nobody can say whether this is older: it is the collector's word then.
        if let Ok(Some(last)) = &last {
            let is_newer = new.content.version > last.content.version;
            if !is_newer && new.digest != last.digest && !self.folder.allows_older {
                return Err(format!(
                    "version {} is not newer than {}, which is in force; agents with --allow-rollback take it",
                    new.content.version, last.content.version
                )
                .into());
            }
        }
        let before = self.folder.before(&new.content)?;
        let looser = self.folder.allows_looser;
        self.taker.check(&new.content, before.as_ref(), looser)?;
        // Before it is kept: the next start reads what is kept.
        let checked = (self.config)(&new.content).and_then(|config| check(&config));
        checked.map_err(|failure| said(&failure))?;
        let kept = self.folder.keep(Some(&new.text));
        kept.map_err(|error| format!("cannot keep it: {error}"))?;
        if let Err(failure) = (self.reload)() {
            let last = last.ok().flatten();
            let restored = self.folder.keep(last.as_ref().map(|last| &*last.text));
            let after = restored.map_or_else(
                |error| format!("; cannot restore the last one: {error}"),
                |()| String::new(),
            );
            return Err(format!("{}{after}", said(&failure)).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
