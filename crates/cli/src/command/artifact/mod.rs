//! `tollgate artifact`: rules as artefacts of OCI registries.

pub(crate) mod args;
mod check;
mod follow;
mod push;

use std::path::Path;

use artifact::{
    ArtifactError, Credentials, Done, Index, InstallOptions, Installer, Layout, PublicKey,
    Reference, Remote, RemoteOptions, Source, Trust, Wanted,
};
use config::Places;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::{terminal, text_file};
use rules::load::ENGINE_VERSION;
use serde_json::{Value, json};

use self::args::{
    AccessOptions, Artifact, Install, InstallRules, RegistryOptions, Search, TrustOptions,
    VerifyArtifact,
};
use self::check::RuleCheck;

/// Largest file of a key or of credentials.
const MAX_SECRET: usize = 1 << 20;

/// Runs the verb.
pub(crate) fn execute(verb: &Artifact) -> Outcome {
    match verb {
        Artifact::Search(args) => search(args),
        Artifact::Install(args) => install(args),
        Artifact::Follow(args) => follow::execute(args),
        Artifact::Verify(args) => verify(args),
        Artifact::Push(args) => push::execute(args),
    }
}

/// Returns the failure of an error, with its next step.
fn failed(error: &ArtifactError) -> Failure {
    let exit = match error.is_passing() {
        true => Exit::Unsupported,
        false => Exit::BadInput,
    };
    Failure::from_error(exit, error).help(error.help())
}

fn read(path: &Path) -> Result<String, Failure> {
    let cannot = |cause: &dyn std::fmt::Display| {
        let message = format!("cannot read {}: {cause}", path.display());
        Failure::new(Exit::BadInput, message).help("name a file that exists")
    };
    let text = text_file::read(path).map_err(|error| cannot(&error))?;
    match text.len() > MAX_SECRET {
        true => Err(cannot(&"it is too large")),
        false => Ok(text),
    }
}

/// Reads index files.
fn index(files: &[String], ca: Option<&Path>) -> Result<Index, Failure> {
    let mut index = Index::default();
    for file in files {
        let text = match file.contains("://") {
            true => artifact::read_index(file, ca.map(Path::to_owned))
                .map_err(|error| failed(&error))?,
            false => text_file::read(Path::new(file)).map_err(|error| {
                let message = format!("cannot read {file}: {error}");
                Failure::new(Exit::BadInput, message).help("name a file or an https:// address")
            })?,
        };
        index.add(file, &text).map_err(|error| failed(&error))?;
    }
    Ok(index)
}

fn trust(options: &TrustOptions) -> Result<Trust, Failure> {
    if options.allow_unsigned {
        return Ok(Trust::Nobody);
    }
    let keys = options.key.iter().map(|path| {
        PublicKey::from_pem(&read(path)?).map_err(|error| {
            let message = format!("{}: {error}", path.display());
            Failure::new(Exit::BadInput, message).help(error.help())
        })
    });
    Ok(Trust::Keys {
        keys: keys.collect::<Result<_, _>>()?,
        signed_as: options.signed_as.clone(),
    })
}

fn remote_options(access: &AccessOptions) -> Result<RemoteOptions, Failure> {
    let credentials = match &access.auth_file {
        None => None,
        Some(path) => Some(Credentials::parse(&read(path)?).map_err(|error| failed(&error))?),
    };
    Ok(RemoteOptions {
        plain_http: access.plain_http,
        authorities: access.ca.clone(),
        credentials,
    })
}

fn installer(
    trusted: &TrustOptions,
    registry: &RegistryOptions,
    rules: &InstallRules,
) -> Result<Installer<'static>, Failure> {
    let folder = match &rules.rules_dir {
        Some(folder) => folder.clone(),
        None => Places::of_user()?.rules.ok_or_else(|| {
            let message =
                "cannot install rules: TOLLGATE_CONFIG_DIR is empty, so no folder of rules is read";
            Failure::new(Exit::BadInput, message).help("name a folder with --rules-dir")
        })?,
    };
    let version = |part: u32| u64::from(part);
    let options = InstallOptions {
        folder,
        trust: trust(trusted)?,
        allow_rollback: rules.allow_rollback,
        engine_version: semver::Version::new(
            version(ENGINE_VERSION.major),
            version(ENGINE_VERSION.minor),
            version(ENGINE_VERSION.patch),
        ),
        index: index(&registry.index, registry.access.ca.as_deref())?,
    };
    let remote = remote_options(&registry.access)?;
    Ok(Installer::new(options, move |reference: &Reference| {
        Ok(Box::new(Remote::new(reference, &remote)?) as Box<dyn Source>)
    }))
}

fn wanted(text: &str) -> Result<Wanted, Failure> {
    Wanted::parse(text).map_err(|error| failed(&error))
}

fn search(args: &Search) -> Outcome {
    let index = index(&args.index, args.ca.as_deref())?;
    let found = index.search(&args.words);
    if args.json {
        let rows: Vec<Value> = found
            .iter()
            .map(|entry| {
                json!({
                    "name": entry.name,
                    "type": entry.kind.name(),
                    "registry": entry.registry,
                    "repository": entry.repository,
                    "description": entry.description,
                })
            })
            .collect();
        return terminal::print(&format!("{}\n", Value::from(rows)));
    }
    if found.is_empty() {
        return terminal::print("nothing found\n");
    }
    let mut text = format!(
        "{:<28} {:<10} {:<52} DESCRIPTION\n",
        "NAME", "TYPE", "PLACE"
    );
    for entry in found {
        let place = format!("{}/{}", entry.registry, entry.repository);
        text.push_str(&format!(
            "{:<28} {:<10} {:<52} {}\n",
            entry.name,
            entry.kind.name(),
            place.escape_debug().to_string(),
            entry.description.escape_debug()
        ));
    }
    terminal::print(&text)
}

fn install(args: &Install) -> Outcome {
    let installer = installer(&args.trust, &args.registry, &args.rules)?;
    if args.trust.allow_unsigned {
        terminal::complain("tollgate: warning: no signature is looked for (--allow-unsigned)\n");
    }
    let all: Result<Vec<_>, _> = args.artifacts.iter().map(|text| wanted(text)).collect();
    for wanted in all? {
        let done = installer.install(&wanted, &RuleCheck);
        let done = done.map_err(|error| failed(&error))?;
        match args.json {
            true => terminal::print(&format!("{}\n", done_json(&done)))?,
            false => terminal::print(&done_text(&done))?,
        };
    }
    Ok(Exit::Ok)
}

/// Describes an installation, a line for each artefact.
fn done_text(done: &Done) -> String {
    if done.steps.is_empty() {
        return format!(
            "{} {} is installed already, {}\n",
            done.name, done.version, done.digest
        );
    }
    let lines = done.steps.iter().map(|step| {
        let installed = &step.installed;
        let before = step.before.as_ref();
        let before = before.map_or_else(String::new, |before| format!(" (before: {before})"));
        let signed = match &installed.key {
            Some(key) => format!("signed by {key}"),
            None => "not verified: no signature was looked for".to_owned(),
        };
        let tests = match step.suites {
            0 => "it has no tests".to_owned(),
            suites => format!("files of tests passed: {suites}"),
        };
        format!(
            "installed {} {}{before} as {}\n  {}\n  {signed}\n  {tests}\n",
            step.name, installed.version, installed.file, installed.digest
        )
    });
    lines.collect()
}

fn done_json(done: &Done) -> Value {
    let steps: Vec<_> = done
        .steps
        .iter()
        .map(|step| {
            json!({
                "name": step.name,
                "version": step.installed.version.to_string(),
                "before": step.before.as_ref().map(ToString::to_string),
                "digest": step.installed.digest.as_str(),
                "registry": step.installed.registry,
                "repository": step.installed.repository,
                "signed_by": step.installed.key.as_ref().map(|key| key.as_str()),
                "file": step.installed.file,
                "test_files": step.suites,
            })
        })
        .collect();
    json!({
        "name": done.name,
        "version": done.version.to_string(),
        "digest": done.digest.as_str(),
        "installed": steps,
    })
}

fn verify(args: &VerifyArtifact) -> Outcome {
    let trusted = trust(&args.trust)?;
    let reference = reference(&wanted(&args.artifact)?, &args.registry)?;
    let source: Box<dyn Source> = match &args.layout {
        Some(folder) => Box::new(Layout::open(folder)),
        None => {
            let options = remote_options(&args.registry.access)?;
            Box::new(Remote::new(&reference, &options).map_err(|error| failed(&error))?)
        }
    };
    let found = artifact::fetch(&*source, &reference, &trusted).map_err(|error| failed(&error))?;
    let key = found.key.as_ref().map(PublicKey::fingerprint);
    let known = |text: &Option<String>| {
        text.as_deref()
            .unwrap_or("not stated")
            .escape_debug()
            .to_string()
    };
    let (name, version) = (known(&found.config.name), known(&found.config.version));
    if args.json {
        return terminal::print(&format!(
            "{}\n",
            json!({
                "reference": reference.to_string(),
                "digest": found.digest.as_str(),
                "layer_digest": found.layer_digest.as_str(),
                "type": found.kind.name(),
                "signed_by": key.as_ref().map(|key| key.as_str()),
                "config": serde_json::to_value(&found.config).unwrap_or(Value::Null),
                "test_files": found.content.as_ref().map(|it| it.tests.len()),
            })
        ));
    }
    let (done, signed) = match key {
        Some(key) => ("verified", key.to_string()),
        None => (
            "read, and not verified",
            "not looked for (--allow-unsigned)".to_owned(),
        ),
    };
    terminal::print(&format!(
        "{reference}: {done}\nname         {name}\nversion      {version}\ntype         {}\ndigest       {}\nlayer        {}\nsigned by    {signed}\n",
        found.kind.name(),
        found.digest,
        found.layer_digest,
    ))
}

/// Returns where an artefact is, also one that cannot be installed.
fn reference(wanted: &Wanted, registry: &RegistryOptions) -> Result<Reference, Failure> {
    let index = index(&registry.index, registry.access.ca.as_deref())?;
    index.reference(wanted).map_err(|error| failed(&error))
}
